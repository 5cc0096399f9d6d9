"""The budget guard: how long a lease to request. The ledger decides whether the budget pays for it."""

from tuner.domain.money import Cost, Rate

MIN_SLICE_NS = 200_000_000
# The shortest useful lease of a trial whose step time has not been measured yet.
UNKNOWN_NEED_NS = 1_000_000_000


def lease_ns(left: Cost, rate: Rate, *, need_ns: int, active: int, slice_ns: int) -> int:
    """Return the length of the lease to request, in nanoseconds. Return 0 if the money does not pay for the shortest useful lease.

    Leases become shorter as the budget runs low, so that the active trials share the last money. If the rest would be too small for
    another useful lease, the lease uses all the money, provided that all the money pays for at most `slice_ns`.

    Args:
        left: The money that may still be held.
        rate: What the trial uses per unit of time: money and GPUs.
        need_ns: The shortest useful lease. Values below `MIN_SLICE_NS` count as `MIN_SLICE_NS`.
        active: Number of active trials.
        slice_ns: The usual length of a lease.
    """
    affordable = rate.affords_ns(left)
    need_ns = max(need_ns, MIN_SLICE_NS)
    if affordable < need_ns:
        return 0
    wanted = max(need_ns, min(slice_ns, affordable // (2 * max(1, active))))
    return affordable if affordable - wanted < need_ns and affordable <= slice_ns else wanted


def fits_deadline(wanted_ns: int, *, need_ns: int, left_ns: int | None) -> int:
    """Return the length of a lease that ends before the wall-clock limit: the smaller of `wanted_ns` and the remaining time `left_ns`.

    Return 0 if less than `need_ns`, the shortest useful lease, remains. If `left_ns` is None, the time is not limited.
    """
    if left_ns is None or wanted_ns <= left_ns:
        return wanted_ns
    return left_ns if left_ns >= need_ns else 0
