"""Ports for processes that bind them seconds after they were chosen."""

from random import Random

from tuner.engine.ray_cluster.launch import free_ports

# Below those that the system gives to who asks for any, and above those of Ray's workers.
WITHIN = range(20_000, 32_000)


def reserved(count: int) -> tuple[int, ...]:
    """Free ones, which nobody else is given meanwhile but who picks the same."""
    return free_ports(count, range(Random().randrange(WITHIN.start, WITHIN.stop - 1000), WITHIN.stop))
