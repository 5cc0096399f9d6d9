"""Rule: training waits for its input data."""

from fractions import Fraction

from tuner.planning.advice.evidence import Evidence, Piece, fact, portion, share, sums, total
from tuner.planning.advice.finding import Change, Finding

LEAST_WALL_NS = 10 * 10**9
WAITS_ABOVE = Fraction(1, 5)
BUSY_GPU = Fraction(9, 10)


def finding(evidence: Evidence) -> Finding | None:
    pieces = evidence.measured("data_wait_ns", "compute_ns")
    counts = sums(pieces)
    wait, compute = counts.get("data_wait_ns", 0), counts.get("compute_ns", 0)
    waits = share(wait, wait + compute)
    if wait + compute < LEAST_WALL_NS or waits <= WAITS_ABOVE or _gpu_is_busy(pieces):
        return None
    workers = fact(pieces, "loader_workers")
    change, *others = _changes(evidence, int(workers) if isinstance(workers, int) else None)
    return Finding(
        kind="input_bound",
        title=f"Training waited for data for {float(waits):.0%} of its time",
        evidence={
            "data_wait_share": waits,
            "data_wait_seconds": Fraction(wait, 10**9),
            "compute_seconds": Fraction(compute, 10**9),
            "loader_workers": int(workers) if isinstance(workers, int) else None,
            "train_usd": total(piece.of("train") for piece in pieces),
        },
        change=change,
        alternatives=tuple(others),
        # If batches are prepared in parallel with training, a step takes the longer of waiting and computing, and the shorter is saved.
        saves=portion(total(piece.of("train") for piece in pieces), min(waits, 1 - waits)),
        saves_note="where batches are made beside the training, a step takes the longer of waiting and computing; at most this",
        verify="compare seconds a step and the share of waiting of one configuration; with the same seed the batches, and so the "
        "metric at each step, must be the same (give the loader's workers fixed seeds)",
        confidence="medium",
    )


def _gpu_is_busy(pieces: tuple[Piece, ...]) -> bool:
    """Return whether the GPU was busy most of the time. If it was, faster input would gain nothing: it computes while the program waits."""
    counts = sums(pieces)
    samples = counts.get("gpu_samples", 0)
    return bool(samples) and share(counts.get("gpu_percent", 0), 100 * samples) >= BUSY_GPU


def _changes(evidence: Evidence, workers: int | None) -> list[Change]:
    cached = Change(
        "the trainable's data",
        None,
        "preprocessed once, cached",
        "decode and transform once, keep the result on the local disk or in memory",
    )
    prefetch = Change(
        "prefetch_factor of the DataLoader", None, "4", "with pin_memory=True where there is a GPU"
    )
    cpus = int(evidence.spec.resources.cpus)
    then = max(2, cpus) if workers is None else max(2, cpus, 2 * workers)
    more = Change(
        "num_workers of the DataLoader",
        None if workers is None else str(workers),
        str(then),
        f"with persistent_workers=True; each takes a processor, and a trial has {cpus}",
    )
    return [more, prefetch, cached] if workers is None or workers < cpus else [cached, prefetch, more]
