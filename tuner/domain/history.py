"""What a job may learn from trials of earlier jobs: which of their configurations are its own, and which trials tell most."""

from collections.abc import Mapping, Sequence

from tuner.domain.space import Config, Space, Value

MAX_TRIALS = 1000


def transferred(space: Space, config: Mapping[str, Value]) -> Config | None:
    """The configuration as one of `space`: parameters that it lacks, or that are inactive in it, left out. None where an
    active one is missing or outside its bounds: nothing is made up."""
    found: Config = {}
    for name in space.order:
        if name in config and space.active(name, found):
            found[name] = config[name]
    return found if space.contains(found) else None


def most_telling(ends: Sequence[tuple[float, int]], limit: int = MAX_TRIALS) -> list[int]:
    """At most `limit` of the trials that ended with these (score, step), by index, ascending: the best half, filled up with
    the most trained of the others. Ties go to the earlier trial."""
    indices = range(len(ends))
    if len(ends) <= limit:
        return list(indices)
    best = sorted(indices, key=lambda i: -ends[i][0])[: limit - limit // 2]
    others = set(indices).difference(best)
    trained = sorted(others, key=lambda i: (-ends[i][1], -ends[i][0], i))[: limit // 2]
    return sorted([*best, *trained])
