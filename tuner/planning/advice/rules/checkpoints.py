"""Rule: checkpoints are saved too often or too rarely, compared to Young's and Daly's optimum.

Let τ be the training time between saves, δ the stall of each save, and M the mean time between losses. Saves then take δ/τ of the training
time, and losses take τ/2M of it (Young 1974). Daly's τ minimizes the sum.
"""

from fractions import Fraction

from tuner.domain.money import Money
from tuner.domain.time import NS
from tuner.planning.advice.evidence import Evidence, Piece, portion, share, sums, total
from tuner.planning.advice.finding import Change, Finding
from tuner.tuning.checkpointing import Exposure, daly_ns

FAR_OFF = (
    2  # intervals from half to twice the best one are accepted, because the cost hardly changes between them
)
DEAR_ABOVE = Fraction(1, 20)
LOST_ABOVE = Fraction(1, 50)
LEAST_STALL_NS = NS // 10
VERIFY = (
    "compare `checkpoint` and `lost` in the bills of both, over as much training; the metric cannot change, since a restored trial "
    "goes on as it was: the restore self-test says so"
)


def finding(evidence: Evidence) -> Finding | None:
    pieces = evidence.measured("saves")
    trained = sum(piece.ns("train", "lost") for piece in pieces)
    if not trained:
        return None
    saves, exposure = sums(pieces)["saves"], evidence.exposures.get(evidence.market) or Exposure()
    stall = max(LEAST_STALL_NS, sum(piece.ns("checkpoint") for piece in pieces) // max(1, saves))
    between, mean = trained // max(1, saves), exposure.mean_ns
    best = max(1, daly_ns(stall, mean))
    saved_usd, lost_usd = total(p.of("checkpoint") for p in pieces), total(p.of("lost") for p in pieces)
    spent = total(piece.spent for piece in pieces).micro_usd
    too_dear = between * FAR_OFF < best and share(saved_usd.micro_usd, spent) > DEAR_ABOVE
    too_rare = between > best * FAR_OFF and share(lost_usd.micro_usd, spent) > LOST_ABOVE
    if not (too_dear or too_rare):
        return None
    gain = _waste(stall, between, mean) - _waste(stall, best, mean)
    most = saved_usd if too_dear else lost_usd
    return Finding(
        kind="checkpoints_too_dear" if too_dear else "checkpoints_too_rare",
        title=f"A checkpoint every {between / NS:.0f} s of training, where {best / NS:.0f} s would be best",
        evidence={
            "interval_seconds": Fraction(between, NS),
            "best_interval_seconds": Fraction(best, NS),
            "stall_seconds": Fraction(stall, NS),
            "mean_seconds_between_losses": Fraction(mean, NS),
            "saves": saves,
            "checkpoint_usd": saved_usd,
            "lost_usd": lost_usd,
        },
        change=_change(evidence, best, saves=saves, too_dear=too_dear),
        saves=min(most, portion(_trained_usd(pieces), gain)),
        saves_note="training times what saves and losses take of it (δ/τ + τ/2M) at this interval and at the best; at most what was "
        f"{'spent on saves' if too_dear else 'lost'}",
        verify=VERIFY,
        confidence="medium",
    )


def _waste(stall: int, between: int, mean: int) -> Fraction:
    return Fraction(stall, between) + Fraction(between, 2 * mean)


def _trained_usd(pieces: tuple[Piece, ...]) -> Money:
    return total(piece.of("train", "lost") for piece in pieces)


def _change(evidence: Evidence, best_ns: int, *, saves: int, too_dear: bool) -> Change:
    fixed, fidelity = evidence.spec.checkpoint.interval_ns, evidence.spec.fidelity
    now = "auto" if fixed is None else f"{fixed / NS:g}s"
    if (
        fixed is None and too_dear
    ):  # `auto` already chooses the best interval, so the extra saves happen at pauses
        then = fidelity.min * fidelity.reduction_factor
        how = "each pause at a rung saves; fewer rungs, or a smaller state, save less often"
        return Change("fidelity.min", str(fidelity.min), str(then), how)
    if not saves:
        how = "none became durable: a trainable that does not save has to, by SpotSafe or tune.report(..., checkpoint=...)"
    else:
        how = "or auto, which measures and does the same" if fixed else ""
    return Change("checkpoint.interval", now, f"{max(1, best_ns // NS)}s", how)
