"""The budget guard: how much time may be asked for at once. The ledger's row has the last word."""

from tuner.domain.money import Cost, Rate

MIN_SLICE_NS = 200_000_000
UNKNOWN_NEED_NS = 1_000_000_000  # for a trial of which nothing is known yet


def lease_ns(left: Cost, rate: Rate, *, need_ns: int, active: int, slice_ns: int) -> int:
    """Nanoseconds to ask for: at least `need_ns`, or 0 where that is not affordable.

    Slices shrink as the budget runs low, so that the last money is shared among those at work; what would be too little
    for another slice is taken along.
    """
    affordable = rate.affords_ns(left)
    need_ns = max(need_ns, MIN_SLICE_NS)
    if affordable < need_ns:
        return 0
    wanted = max(need_ns, min(slice_ns, affordable // (2 * max(1, active))))
    return affordable if affordable - wanted < need_ns and affordable <= slice_ns else wanted


def fits_deadline(wanted_ns: int, *, need_ns: int, left_ns: int | None) -> int:
    """`wanted_ns`, cut to what is left of the wall clock; 0 where not even `need_ns` is."""
    if left_ns is None or wanted_ns <= left_ns:
        return wanted_ns
    return left_ns if left_ns >= need_ns else 0
