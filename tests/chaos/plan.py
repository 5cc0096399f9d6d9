"""Which faults happen when: drawn from a seed, so that a run can be repeated. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from tests.chaos.proxy import HARMS


@dataclass(frozen=True, slots=True)
class Fault:
    """`of`: the kind it is counted and chosen by. `longest_s`: how long it may last; 0: it is over at once."""

    name: str
    of: str
    weight: float
    longest_s: float = 0.0


# Those that a deployment gets over within seconds come often; those that end all that trains come seldom, so that something does.
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
# Faults come for so long, and then none for as long as trials need to train a little.
STORM_S, REST_S = 40.0, 20.0
KINDS = tuple(dict.fromkeys(fault.of for fault in FAULTS))


# What a deployment with SQLite, a folder and one node does not have.
_BEHIND_A_NETWORK = ("database", "storage", "node")


@dataclass(frozen=True, slots=True)
class Strike:
    """`draw` in [0, 1) chooses among the victims that are there at that time, and how hard it hits."""

    at_s: float
    fault: Fault
    draw: float
    for_s: float


def chosen(words: Collection[str]) -> tuple[Fault, ...]:
    """Faults by their name or kind; all of them where nothing is said. Raises ValueError for a word that is neither."""
    known = {*KINDS, *(fault.name for fault in FAULTS)}
    if unknown := sorted(set(words) - known):
        raise ValueError(f"no fault is called {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return tuple(fault for fault in FAULTS if not words or {fault.name, fault.of} & set(words))


def without_network(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    return tuple(fault for fault in faults if not set(fault.name.split()) & set(_BEHIND_A_NETWORK))


def strikes(seed: int, seconds: float, faults: Sequence[Fault], *, every_s: float = 7.0) -> list[Strike]:
    """In order. Faults of processes come every `every_s` on average, all others together half as often; in storms, with a rest after each."""
    rng, found = Random(seed), []
    processes = [fault for fault in faults if fault.of == "process"]
    others = [fault for fault in faults if fault.of != "process"]
    share = STORM_S / (STORM_S + REST_S)
    for among, pause_s in ((processes, every_s * share), (others, 2 * every_s * share)):
        at_s = rng.uniform(0, pause_s) if among else seconds
        while (after_s := _with_rests(at_s)) < seconds:
            (fault,) = rng.choices(among, [one.weight for one in among])
            lasts_s = rng.uniform(min(1.0, fault.longest_s), fault.longest_s)
            found.append(Strike(round(after_s, 3), fault, rng.random(), round(lasts_s, 3)))
            at_s += rng.uniform(0.5, 1.5) * pause_s
    return sorted(found, key=lambda strike: strike.at_s)


def _with_rests(storming_s: float) -> float:
    storms, into_s = divmod(storming_s, STORM_S)
    return storms * (STORM_S + REST_S) + into_s
