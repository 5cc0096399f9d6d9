"""Advice on what would have made a job cheaper, from its measurements and its ledger. Each rule is a module with a pure function."""

from tuner.planning.advice.evidence import Evidence
from tuner.planning.advice.finding import Finding, Rule
from tuner.planning.advice.rules import (
    checkpoints,
    cpu,
    data_wait,
    egress,
    gpu,
    idle,
    interruptions,
    memory,
    min_fidelity,
    precision,
    pruning,
    setup,
    spot,
)

RULES: tuple[Rule, ...] = (
    gpu.finding,
    cpu.finding,
    memory.finding,
    data_wait.finding,
    precision.finding,
    checkpoints.finding,
    setup.finding,
    idle.finding,
    min_fidelity.finding,
    pruning.finding,
    spot.finding,
    interruptions.finding,
    egress.finding,
)


def findings(evidence: Evidence) -> list[Finding]:
    """Return all findings, the largest savings first. Findings without an amount come last."""
    found = [finding for rule in RULES if (finding := rule(evidence)) is not None]
    return sorted(found, key=lambda one: (one.saves is None, -(one.saves.micro_usd if one.saves else 0)))
