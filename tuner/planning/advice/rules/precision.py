"""Training in fp32 on a GPU that has bf16."""

from tuner.domain.usage import Fact
from tuner.planning.accelerators import accelerator
from tuner.planning.advice.evidence import Evidence, Piece, fact, share, total
from tuner.planning.advice.finding import Change, Finding

# NVIDIA's GPUs have bf16 in their tensor cores from compute capability 8.0 (Ampere) on.
BF16_SINCE = 8


def finding(evidence: Evidence) -> Finding | None:
    pieces = evidence.with_fact("precision", lambda value: value == "fp32")
    if not evidence.spec.resources.gpus or not pieces or not _has_bf16(evidence, pieces):
        return None
    trained = total(piece.of("train") for piece in pieces)
    return Finding(
        kind="fp32_where_bf16",
        title="Training in fp32 on a GPU that has bf16",
        evidence={
            "precision": "fp32",
            "gpu": str(fact(pieces, "gpu") or (evidence.home.accelerator if evidence.home else "")),
            "gpu_capability": str(fact(pieces, "gpu_capability") or "") or None,
            "train_usd": trained,
            "share_of_spend": share(trained.micro_usd, evidence.spent.micro_usd),
        },
        change=Change(
            "precision of the trainable",
            "fp32",
            "bf16",
            "tuner.training.autocast('bf16', 'cuda'); weights and optimizer stay fp32",
        ),
        saves=None,
        saves_note="how much faster it is depends on how much of a step is matrix products; a few steps of one configuration tell",
        verify="train the best configuration with three seeds in both and compare the metric at the last step: bf16 has 8 bits of "
        "precision, so look at losses that are sums over many, and at small learning rates",
        confidence="medium",
    )


def _has_bf16(evidence: Evidence, pieces: tuple[Piece, ...]) -> bool:
    capability: Fact | None = fact(pieces, "gpu_capability")
    if isinstance(capability, str) and capability.partition(".")[0].isdecimal():
        return int(capability.partition(".")[0]) >= BF16_SINCE
    home = evidence.home
    known = accelerator(home.accelerator, home.gpu_memory_gib) if home is not None else None
    return known is not None and known.bf16
