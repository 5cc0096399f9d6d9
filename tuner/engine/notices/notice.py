"""What a machine is told before it is taken away, in one shape for all who may say so."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tuner.domain.time import NS, Instant

Source = Literal["aws", "gcp", "azure", "signal", "operator"]
Kind = Literal["terminate", "maintenance", "rebalance", "pause"]
ENDING: frozenset[Kind] = frozenset({"terminate", "maintenance"})

# A deadline that moves by less was only rounded differently.
SOONER_NS = NS


@dataclass(frozen=True, slots=True)
class Notice:
    """`kind`: under `terminate` the machine goes for good, under `maintenance` its processes end and it may come back, under
    `rebalance` it is likelier than others to be taken, under `pause` it stands still for seconds and loses nothing.

    `deadline`: when that happens, by this machine's clock; None where nobody said. Clouds do not promise to wait for it.
    `id` stays the same as long as the notice stands, so that a repeat is recognised. `text` tells a person.
    """

    source: Source
    kind: Kind
    id: str
    deadline: Instant | None
    text: str

    @property
    def ends_node(self) -> bool:
        """Whether nothing that runs here now will be running afterwards."""
        return self.kind in ENDING

    def left_ns(self, now: Instant) -> int | None:
        """Time until the deadline, 0 once it has passed; None where there is none."""
        return None if self.deadline is None else max(0, self.deadline - now)


class MalformedNotice(ValueError):
    """An answer that says neither that there is a notice nor that there is none."""


def changes(told: Mapping[str, Notice], found: Iterable[Notice]) -> tuple[list[Notice], list[Notice]]:
    """What of `found` is to be told, and what was told and no longer stands. What was told already is told again only where
    its deadline was brought forward."""
    standing = {notice.id: notice for notice in found}
    new = [n for n in standing.values() if n.id not in told or _sooner(n.deadline, told[n.id].deadline)]
    return new, [notice for notice in told.values() if notice.id not in standing]


def _sooner(deadline: Instant | None, than: Instant | None) -> bool:
    return deadline is not None and (than is None or deadline < than - SOONER_NS)
