"""A recorded spot market from the view of one training: when a machine is available, and when it is preempted."""

import csv
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tuner.domain.time import HOUR_NS, parse_rfc3339
from tuner.simulator.traces import Trace, UpTimes, load_traces

FLEET_SLOTS = 4  # machines of a fleet at a quarter, half, three quarters and all of its largest size
SHORTEST_NS = 8 * HOUR_NS  # excludes the one-hour segments that Parcae cut out of traces like Bamboo's
TWINS = ("us-central1-a_c3", "us-central1-b_c3")  # byte-identical to us-central1-c: one measurement


@dataclass(frozen=True)
class Track:
    """A trace, or one of several slots of a trace."""

    family: str
    name: str
    trace: Trace
    slots: int = 1  #: The number of slots of the trace.
    slot: int = 0  #: The index of this slot.

    @property
    def length_ns(self) -> int:
        return self.trace.length_ns

    def market(self, start_ns: int) -> "Market":
        return Market(self.trace.up_times(self.slots, start_ns=start_ns)[self.slot])


class Market:
    """The track from a start time on, repeated without end."""

    def __init__(self, times: Iterator[UpTimes]) -> None:
        self._times = times
        self._begins: list[int] = []
        self._ends: list[int] = []

    def up_until(self, now: int) -> int | None:
        """Return when a machine launched now is preempted, or None if none is available. The value is large if it never is."""
        span = self._span(now)
        return span[1] if span[0] <= now else None

    def next_change(self, now: int) -> int:
        begin, end = self._span(now)
        return end if begin <= now else begin

    def _span(self, now: int) -> tuple[int, int]:
        """The span that holds `now`, or the next one."""
        while not self._ends or self._ends[-1] <= now:
            times = next(self._times)
            self._begins.append(times.begin_ns)
            self._ends.append(2**62 if times.end_ns is None else times.end_ns)
        index = bisect_right(self._ends, now)
        return self._begins[index], self._ends[index]


def load(folder: Path) -> list[Track]:
    """Return the usable tracks of the files in the folder."""
    tracks = []
    for trace in load_traces(folder / "skypilot_cant_be_late.csv"):
        kind, nodes, *_ = trace.name.split("-")
        node_text = " one" if nodes == "1n" else " all of several"
        tracks.append(Track(f"AWS, GCP 2022-23: {kind},{node_text}", trace.name, trace))
    for trace in load_traces(folder / "bamboo_parcae_counts.csv"):
        slots = [
            Track("Bamboo's fleets", f"{trace.name}/{n}", trace, FLEET_SLOTS, n) for n in range(FLEET_SLOTS)
        ]
        tracks += slots
    tracks += _held_machines(folder / "stanford_2020_instance_lifetimes.csv")
    return [track for track in tracks if _usable(track)]


def _held_machines(path: Path) -> Iterator[Track]:
    """Yield a track for each slot of machines that were held one after the other.

    No machine is available between the end of one and the beginning of the next.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (row["log"], row["slot"], row["created_at"]))
    for (log, slot), group in groupby(rows, key=lambda row: (row["log"], row["slot"])):
        lives = [(parse_rfc3339(row["created_at"]), parse_rfc3339(row["ended_at"])) for row in group]
        zero, segments, end = lives[0][0], [], 0
        for begin, until in lives:
            if begin - zero > end:
                segments.append((end, begin - zero, 0))
            segments.append((begin - zero, until - zero, 1))
            end = until - zero
        yield Track("Stanford 2020: held machines", f"{log}/{slot}", Trace(f"{log}/{slot}", tuple(segments)))


def _usable(track: Track) -> bool:
    if any(twin in track.name for twin in TWINS) or track.length_ns < SHORTEST_NS:
        return False
    return any(count * track.slots > track.slot * track.trace.nodes for _, _, count in track.trace.segments)
