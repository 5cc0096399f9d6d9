"""Advice on what would have made a job cheaper, from its measurements and its ledger. Each rule is a pure function."""

from tuner.planning.advice import early_stopping, overheads, resources
from tuner.planning.advice.evidence import AdviceFinding, JobEvidence, Rule

RULES: tuple[Rule, ...] = (
    resources.gpu_underused,
    resources.cpu_underused,
    resources.memory_unused,
    resources.input_bound,
    resources.fp32_where_bf16,
    resources.scaling_inefficient,
    overheads.checkpoint_interval,
    overheads.setup_expensive,
    overheads.idle_expensive,
    early_stopping.min_fidelity_misleads,
    early_stopping.pruned_too_late,
    overheads.spot_unused,
    overheads.interruptions_expensive,
    overheads.regions_apart,
    overheads.data_apart,
)


def findings(evidence: JobEvidence) -> list[AdviceFinding]:
    """Apply all rules, and return the findings with the largest savings first. Findings with unknown savings come last."""
    rule_findings = [finding for rule in RULES if (finding := rule(evidence)) is not None]
    return sorted(
        rule_findings,
        key=lambda advice_finding: (
            advice_finding.saves is None,
            -(advice_finding.saves.micro_usd if advice_finding.saves else 0),
        ),
    )
