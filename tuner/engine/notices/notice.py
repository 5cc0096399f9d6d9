"""The notice of a coming event for a machine, such as a preemption, in the same form for all sources."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tuner.domain.time import NS, Instant

Source = Literal["aws", "gcp", "azure", "signal", "operator"]
Kind = Literal["terminate", "maintenance", "rebalance", "pause"]
ENDING: frozenset[Kind] = frozenset({"terminate", "maintenance"})

# A deadline that moves by less than this was only rounded differently.
SOONER_NS = NS


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning that something will happen to this machine.

    The kinds are:

    - `terminate`: the machine is taken away for good.
    - `maintenance`: all processes end, and the machine may come back.
    - `rebalance`: the machine has a higher risk of preemption.
    - `pause`: the machine stops for seconds and loses nothing.
    """

    source: Source
    kind: Kind
    id: str  #: The id stays the same while the notice is current, so that a repeated notice is recognised.
    deadline: (
        Instant | None
    )  #: When the event happens, by this machine's clock. None if unknown. Clouds may act earlier.
    text: str  #: A description for people.

    @property
    def ends_node(self) -> bool:
        """Whether all processes that run on the machine now will end."""
        return self.kind in ENDING

    def left_ns(self, now: Instant) -> int | None:
        """Return the time until the deadline, 0 if it has passed, or None if there is no deadline."""
        return None if self.deadline is None else max(0, self.deadline - now)


class MalformedNotice(ValueError):
    """An answer from which it cannot be read whether there is a notice."""


def changes(passed_on: Mapping[str, Notice], found: Iterable[Notice]) -> tuple[list[Notice], list[Notice]]:
    """Return the notices to pass on and the notices that were withdrawn.

    A notice that was passed on before is passed on again only if its deadline is now earlier.

    Args:
        passed_on: The notices that were passed on, by id.
        found: The current notices.
    """
    standing = {notice.id: notice for notice in found}
    new = [
        n for n in standing.values() if n.id not in passed_on or _sooner(n.deadline, passed_on[n.id].deadline)
    ]
    return new, [notice for notice in passed_on.values() if notice.id not in standing]


def _sooner(deadline: Instant | None, than: Instant | None) -> bool:
    return deadline is not None and (than is None or deadline < than - SOONER_NS)
