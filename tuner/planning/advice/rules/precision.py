"""Rule: training uses fp32 on a GPU that supports bf16."""

from fractions import Fraction

from tuner.domain.money import Money
from tuner.domain.usage import Fact
from tuner.planning.accelerators import accelerator
from tuner.planning.advice.evidence import Evidence, Piece, fact, portion, share, sums, total
from tuner.planning.advice.finding import Change, Finding

# The tensor cores of NVIDIA's GPUs support bf16 since compute capability 8.0 (Ampere).
BF16_SINCE = 8
# The speedup of the GPU's busy time, because half the bytes are moved and tensor cores compute the products. NVIDIA reports speedups of 1.5
# to 3.3 for mixed precision compared to fp32 (developer.nvidia.com, "Mixed Precision Training", 2017 to 2020).
FASTER = Fraction(2)


def finding(evidence: Evidence) -> Finding | None:
    pieces = evidence.with_fact("precision", lambda value: value == "fp32")
    if not evidence.spec.resources.gpus or not pieces or not _has_bf16(evidence, pieces):
        return None
    trained, saves = total(piece.of("train") for piece in pieces), _saves(pieces)
    return Finding(
        kind="fp32_where_bf16",
        title="Training in fp32 on a GPU that has bf16",
        evidence={
            "precision": "fp32",
            "gpu": str(fact(pieces, "gpu") or (evidence.home.accelerator if evidence.home else "")),
            "gpu_capability": str(fact(pieces, "gpu_capability") or "") or None,
            "gpu_utilisation": _busy(pieces),
            "train_usd": trained,
            "share_of_spend": share(trained.micro_usd, evidence.spent.micro_usd),
        },
        change=Change(
            "precision of the trainable",
            "fp32",
            "bf16",
            "tuner.training.autocast('bf16', 'cuda'); weights and optimizer stay fp32",
        ),
        saves=saves,
        saves_note="how much faster it is depends on how much of a step is matrix products; a few steps of one configuration tell"
        if saves is None
        else f"if what the GPU is busy with takes 1/{FASTER} of the time, as is common; a few steps of one configuration tell",
        verify="train the best configuration with three seeds in both and compare the metric at the last step: bf16 has 8 bits of "
        "precision, so look at losses that are sums over many, and at small learning rates",
        confidence="low",
    )


def _measured(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    return tuple(piece for piece in pieces if piece.usage is not None and piece.usage.gpu_samples)


def _busy(pieces: tuple[Piece, ...]) -> Fraction | None:
    """Return the share of time in which the GPU was busy. Return None if no GPU was measured."""
    counts = sums(_measured(pieces))
    samples = counts.get("gpu_samples", 0)
    return min(Fraction(1), share(counts.get("gpu_percent", 0), 100 * samples)) if samples else None


def _saves(pieces: tuple[Piece, ...]) -> Money | None:
    busy = _busy(pieces)
    if busy is None:
        return None
    return portion(total(piece.of("train") for piece in _measured(pieces)), busy * (1 - 1 / FASTER))


def _has_bf16(evidence: Evidence, pieces: tuple[Piece, ...]) -> bool:
    capability: Fact | None = fact(pieces, "gpu_capability")
    if isinstance(capability, str) and capability.partition(".")[0].isdecimal():
        return int(capability.partition(".")[0]) >= BF16_SINCE
    home = evidence.home
    known = accelerator(home.accelerator, home.gpu_memory_gib) if home is not None else None
    return known is not None and known.bf16
