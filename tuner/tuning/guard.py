"""The budget guard: how long a lease to request. The ledger decides whether the budget pays for it."""

from tuner.domain.money import Cost, Rate

MIN_SLICE_NS = 200_000_000
UNKNOWN_NEED_NS = 1_000_000_000  # for a trial without a measured step


def lease_ns(left: Cost, rate: Rate, *, need_ns: int, active: int, slice_ns: int) -> int:
    """Return the nanoseconds of the lease to request, at least `need_ns`. Return 0 if `left` does not pay for that.

    Leases become shorter as the budget runs low, so that the active trials share the last money. If less than another lease would
    remain, the lease takes all of the money.
    """
    affordable = rate.affords_ns(left)
    need_ns = max(need_ns, MIN_SLICE_NS)
    if affordable < need_ns:
        return 0
    wanted = max(need_ns, min(slice_ns, affordable // (2 * max(1, active))))
    return affordable if affordable - wanted < need_ns and affordable <= slice_ns else wanted


def fits_deadline(wanted_ns: int, *, need_ns: int, left_ns: int | None) -> int:
    """Return `wanted_ns`, reduced to the remaining wall-clock time, or 0 if less than `need_ns` remains."""
    if left_ns is None or wanted_ns <= left_ns:
        return wanted_ns
    return left_ns if left_ns >= need_ns else 0
