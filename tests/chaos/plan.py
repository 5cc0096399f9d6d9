"""Draw the faults and their times from a seed, so that a run can be repeated. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from tests.chaos.proxy import HARMS


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault.

    `of` is the kind under which it is counted and selected. `longest_s` is how long it may last; 0 means that
    it is instantaneous.
    """

    name: str
    of: str
    weight: float
    longest_s: float = 0.0


# Faults from which a deployment recovers within seconds are frequent. Faults that end all training are rare, so
# that trials make progress.
_KILLED = {
    "service": 4.0,
    "driver": 2.0,
    "worker": 5.0,
    "raylet": 1.0,
    "gcs": 0.5,
    "head": 0.7,
    "database": 2.5,
}
_STOPPED = {"service": 2.0, "driver": 1.0, "worker": 2.0, "raylet": 0.7, "gcs": 0.7, "database": 1.0}
FAULTS: tuple[Fault, ...] = (
    *(Fault(f"kill {victim}", "process", weight) for victim, weight in _KILLED.items()),
    *(Fault(f"stop {victim}", "process", weight, 6.0) for victim, weight in _STOPPED.items()),
    Fault("restart service", "process", 2),
    Fault("restart database", "process", 1),
    Fault("drain node", "process", 2),
    *(Fault(f"database {harm}", "network", 1, 5.0) for harm in HARMS),
    *(Fault(f"storage {harm}", "network", 0.7, 5.0) for harm in HARMS),
    Fault("storage answers 500", "storage", 1.5, 6.0),
    Fault("storage answers 503", "storage", 1.5, 6.0),
    Fault("storage answers 403", "storage", 1, 4.0),
    Fault("disk full", "disk", 2, 4.0),
    Fault("clock forward", "clock", 1, 5.0),
    Fault("clock back", "clock", 1, 5.0),
)
# Faults occur for STORM_S seconds, followed by REST_S seconds without faults, so that trials can train.
STORM_S, REST_S = 40.0, 20.0
KINDS = tuple(dict.fromkeys(fault.of for fault in FAULTS))


# A deployment with SQLite, a folder and one node does not have these.
_BEHIND_A_NETWORK = ("database", "storage", "node")


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault at a time. `draw`, in [0, 1), selects the victim among those alive at that time, and the
    severity.
    """

    at_s: float
    fault: Fault
    draw: float
    for_s: float


def chosen(words: Collection[str]) -> tuple[Fault, ...]:
    """Return the faults with these names or kinds, or all faults if `words` is empty. Raise ValueError for an
    unknown word.
    """
    known = {*KINDS, *(fault.name for fault in FAULTS)}
    if unknown := sorted(set(words) - known):
        raise ValueError(f"no fault is called {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return tuple(fault for fault in FAULTS if not words or {fault.name, fault.of} & set(words))


def without_network(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    return tuple(fault for fault in faults if not set(fault.name.split()) & set(_BEHIND_A_NETWORK))


def strikes(seed: int, seconds: float, faults: Sequence[Fault], *, every_s: float = 7.0) -> list[Strike]:
    """Return the strikes in order of time.

    Process faults come every `every_s` seconds on average, all others together half as often. Faults come in
    storms, with a rest after each.
    """
    rng, planned_strikes = Random(seed), []
    processes = [fault for fault in faults if fault.of == "process"]
    others = [fault for fault in faults if fault.of != "process"]
    share = STORM_S / (STORM_S + REST_S)
    for among, pause_s in ((processes, every_s * share), (others, 2 * every_s * share)):
        at_s = rng.uniform(0, pause_s) if among else seconds
        while (after_s := _with_rests(at_s)) < seconds:
            (fault,) = rng.choices(among, [weighted_fault.weight for weighted_fault in among])
            lasts_s = rng.uniform(min(1.0, fault.longest_s), fault.longest_s)
            planned_strikes.append(Strike(round(after_s, 3), fault, rng.random(), round(lasts_s, 3)))
            at_s += rng.uniform(0.5, 1.5) * pause_s
    return sorted(planned_strikes, key=lambda strike: strike.at_s)


def _with_rests(storming_s: float) -> float:
    storms, into_s = divmod(storming_s, STORM_S)
    return storms * (STORM_S + REST_S) + into_s
