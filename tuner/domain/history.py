"""Warm start from trials of earlier jobs: which configurations fit a job's search space, and which trials to learn from."""

from collections.abc import Mapping, Sequence

from tuner.domain.space import Config, Space, Value

MAX_TRIALS = 1000


def transferred(space: Space, config: Mapping[str, Value]) -> Config | None:
    """Return the configuration as one of `space`, or None if an active parameter is missing or out of bounds.

    Parameters that are not in the space, or inactive in it, are omitted. No value is invented.
    """
    transfer: Config = {}
    for name in space.order:
        if name in config and space.active(name, transfer):
            transfer[name] = config[name]
    return transfer if space.contains(transfer) else None


def most_informative(last_points: Sequence[tuple[float, float, int]], limit: int = MAX_TRIALS) -> list[int]:
    """Return the indices, ascending, of at most `limit` trials to learn from.

    Half of them are the best, by violation and then by score. The rest are the most trained of the others. Ties go to the earlier trial.

    Args:
        last_points: The last (violation, score, step) of each trial. Feasible trials have the violation 0.
    """
    indices = range(len(last_points))
    if len(last_points) <= limit:
        return list(indices)
    ranks = [(violation, -score) for violation, score, _ in last_points]
    best = sorted(indices, key=lambda i: ranks[i])[: limit - limit // 2]
    others = set(indices).difference(best)
    trained = sorted(others, key=lambda i: (-last_points[i][2], ranks[i], i))[: limit // 2]
    return sorted([*best, *trained])
