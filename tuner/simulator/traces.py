"""Recorded availability of spot machines, which determines when the simulated workers are up.

Three CSV formats are supported. They are distinguished by their columns. Each may contain any number of traces:

- intervals: `trace_id, start_s, end_s, available` (nodes), ascending, without overlap. No node is available in gaps.
- counts: `trace_id, time_s, available` after each change of a fleet's size.
- lifetimes: `log, slot, created_at, ended_at` of each machine.

The fraction of workers that are up equals the number of available nodes divided by the trace's largest number, rounded down to whole
workers. The workers with the highest index are taken away first. When a trace ends, it starts again.
"""

import csv
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from tuner.domain.errors import BadFile
from tuner.domain.time import MAX_SECONDS, NS, parse_rfc3339

MAX_NODES = 100_000
MAX_BYTES = 100_000_000
NOTICE_NS = 120 * NS
NOTICES_NS = {"aws": 120 * NS, "gcp": 30 * NS, "azure": 30 * NS}
SHIPPED = Path(__file__).parent / "spot_markets"
Row = dict[str, str]
Segment = tuple[int, int, int]


class TraceError(BadFile):
    """The trace cannot be used."""


@dataclass(frozen=True, slots=True)
class UpTimes:
    """A worker is up from `begin_ns` to `end_ns`, counted from the start of the run. None means until the end of the run."""

    begin_ns: int
    end_ns: int | None


@dataclass(frozen=True)
class Trace:
    """A recorded trace of the number of available nodes."""

    name: str
    segments: tuple[Segment, ...]  #: (begin, end, nodes) in nanoseconds, from 0 and without gaps.
    cloud: str = ""  #: Empty if unknown.

    @property
    def length_ns(self) -> int:
        return self.segments[-1][1]

    @property
    def notice_ns(self) -> int:
        """The length of the notice that the trace's cloud promises."""
        return NOTICES_NS.get(self.cloud.lower(), NOTICE_NS)

    @property
    def nodes(self) -> int:
        return max(count for _, _, count in self.segments)

    def up_times(self, workers: int, *, start_ns: int = 0) -> list[Iterator[UpTimes]]:
        """Return the up times of each worker, starting at `start_ns` of the trace."""
        start_ns %= self.length_ns
        later = [(max(a, start_ns), b, count) for a, b, count in self.segments if b > start_ns]
        before = [(a, min(b, start_ns), count) for a, b, count in self.segments if a < start_ns]
        turned = [(a - start_ns, b - start_ns, count) for a, b, count in later]
        turned += [
            (a + self.length_ns - start_ns, b + self.length_ns - start_ns, count) for a, b, count in before
        ]
        found = []
        for worker in range(workers):
            up = [(a, b) for a, b, count in turned if count * workers >= (worker + 1) * self.nodes]
            found.append(self._repeated(up))
        return found

    def _repeated(self, up: list[tuple[int, int]]) -> Iterator[UpTimes]:
        if sum(b - a for a, b in up) == self.length_ns:
            yield UpTimes(0, None)
            return
        begin, end = up[0]
        spans = _for_ever(up, self.length_ns)
        next(spans)
        for a, b in spans:
            if a > end:
                yield UpTimes(begin, end)
                begin = a
            end = b

    def longest_ns(self) -> int | None:
        """Return the longest time that the worker of a one-worker run is up without interruption, or None if it is always up."""
        times = self.up_times(1)[0]
        spans = [next(times) for _ in range(len(self.segments) + 1 if self._ends() else 1)]
        return max((s.end_ns - s.begin_ns for s in spans if s.end_ns is not None), default=None)

    def _ends(self) -> bool:
        return any(count < self.nodes for _, _, count in self.segments)


def _for_ever(spans: list[tuple[int, int]], period: int) -> Iterator[tuple[int, int]]:
    offset = 0
    while True:
        yield from ((a + offset, b + offset) for a, b in spans)
        offset += period


def drawn(
    path: Path | str, *, seed: int, notice_ns: int | None, trace_id: str | None = None
) -> tuple[Trace, int]:
    """Draw a usable trace of a file and a random start in it, in nanoseconds.

    A trace is usable if a node is up for longer than the notice.

    Args:
        path: The file, or the name of a shipped one.
        seed: The seed of the draw.
        notice_ns: The length of the notice. None means the one that the trace's cloud promises.
        trace_id: Use only the trace with this name.

    Raises:
        TraceError: The file cannot be read, or has no usable trace.
    """
    traces = load_traces(path)
    if trace_id is not None:
        traces = [trace for trace in traces if trace.name == trace_id]
        if not traces:
            raise TraceError(f"{path}: has no trace {trace_id!r}: name one of its trace_id")
    usable = [t for t in traces if _usable(t, t.notice_ns if notice_ns is None else notice_ns)]
    if not usable:
        raise TraceError(
            f"{path}: no node is ever up for longer than the notice: take another trace, or a shorter notice"
        )
    rng = Random(f"preemptions/{seed}")
    trace = rng.choice(usable)
    return trace, rng.randrange(trace.length_ns)


def _usable(trace: Trace, notice_ns: int) -> bool:
    if not trace.nodes:
        return False
    longest = trace.longest_ns()
    return longest is None or longest > notice_ns


def load_traces(path: Path | str) -> list[Trace]:
    """Return all traces of a file, or of a shipped file given by its name, in the order of the file.

    Raises:
        TraceError: The file cannot be used. The message names the file, the line and how to fix it.
    """
    shipped = {file.stem: file for file in SHIPPED.glob("*.csv")}
    if not Path(path).exists():
        if str(path) not in shipped:
            names = ", ".join(sorted(shipped))
            raise TraceError(f"{path}: there is no such file: name one, or a trace that is shipped: {names}")
        path = shipped[str(path)]
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise TraceError(f"{path}: is larger than {MAX_BYTES} bytes: keep the traces that are needed")
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read as text: {error}") from error
    try:
        return _traces(text)
    except _Wrong as error:
        raise TraceError(f"{path}: {error}") from error


class _Wrong(ValueError):
    """The file is invalid. The message does not name the file."""


def _traces(text: str) -> list[Trace]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    header = reader.fieldnames or []
    read = _form(list(header))
    groups: dict[str, list[tuple[int, Row]]] = {}
    try:
        for row in reader:
            if None in row or None in row.values():
                raise _Wrong(f"line {reader.line_num}: has not as many fields as the header")
            groups.setdefault(row.get("trace_id", row.get("log", "")), []).append((reader.line_num, row))
    except csv.Error as error:
        raise _Wrong(f"line {reader.line_num} or the one after: {error}") from error
    if not groups:
        raise _Wrong("line 1: has a header, but no rows")
    return [
        Trace(name, tuple(_gapless(read(rows))), rows[0][1].get("cloud", "")) for name, rows in groups.items()
    ]


# Required and optional columns of each format.
FORMS: list[tuple[set[str], set[str]]] = [
    (
        {"trace_id", "start_s", "end_s", "available"},
        {"kind", "cloud", "zone", "instance_type", "accelerator", "nodes_wanted"},
    ),
    (
        {"trace_id", "time_s", "available"},
        {"cloud", "zone", "instance_type", "accelerator", "event"},
    ),
    (
        {"log", "slot", "created_at", "ended_at"},
        {"cloud", "zone", "accelerator", "count", "lifetime_s", "end_reason"},
    ),
]


def _form(header: list[str]) -> Callable[[list[tuple[int, Row]]], list[Segment]]:
    readers = (_intervals, _counts, _lifetimes)
    for (needed, more), read in zip(FORMS, readers, strict=True):
        if needed <= set(header):
            unknown = [name for name in header if name not in needed | more]
            if unknown or len(set(header)) < len(header):
                raise _Wrong(
                    f"line 1: the column {(unknown or header)[0]!r} is unknown or there twice: remove it"
                )
            return read
    known = "; or ".join(", ".join(sorted(needed)) for needed, _ in FORMS)
    raise _Wrong(f"line 1: the columns {', '.join(header)[:200]!r} are those of no trace: {known} are needed")


def _intervals(rows: list[tuple[int, Row]]) -> list[Segment]:
    found: list[Segment] = []
    for line, row in rows:
        begin, end = _ns(line, row, "start_s"), _ns(line, row, "end_s")
        if end <= begin:
            raise _Wrong(f"line {line}: end_s is not after start_s: give each interval a length")
        if found and begin < found[-1][1]:
            raise _Wrong(
                f"line {line}: begins before the interval above ends: sort them, and remove overlaps"
            )
        found.append((begin, end, _count(line, row)))
    return found


def _counts(rows: list[tuple[int, Row]]) -> list[Segment]:
    points = [(_ns(line, row, "time_s"), _count(line, row)) for line, row in rows]
    for (line, _), ((before, _), (after, _)) in zip(rows[1:], pairwise(points), strict=True):
        if after < before:
            raise _Wrong(f"line {line}: time_s goes back: sort the changes by time")
    found = [(a, b, count) for (a, count), (b, _) in pairwise(points) if b > a]
    if not found:
        raise _Wrong(f"line {rows[-1][0]}: the trace has no length: two different times at least are needed")
    return found


def _lifetimes(rows: list[tuple[int, Row]]) -> list[Segment]:
    ended: dict[str, int] = {}
    changes: dict[int, int] = {}
    for line, row in rows:
        begin, end = _instant(line, row, "created_at"), _instant(line, row, "ended_at")
        if end <= begin:
            raise _Wrong(f"line {line}: ended_at is not after created_at: give each machine a lifetime")
        if begin < ended.get(row["slot"], 0):
            raise _Wrong(
                f"line {line}: slot {row['slot']!r} is held already: sort each slot, and remove overlaps"
            )
        ended[row["slot"]] = end
        changes[begin] = changes.get(begin, 0) + 1
        changes[end] = changes.get(end, 0) - 1
    times = sorted(changes)
    found, up = [], 0
    for a, b in pairwise(times):
        up += changes[a]
        found.append((a, b, up))
    return found


def _gapless(segments: list[Segment]) -> Iterator[Segment]:
    """Yield the segments shifted to start at 0, with segments of 0 nodes in the gaps."""
    zero = end = segments[0][0]
    for begin, until, count in segments:
        if begin > end:
            yield end - zero, begin - zero, 0
        yield begin - zero, until - zero, count
        end = until


def _ns(line: int, row: Row, name: str) -> int:
    try:
        seconds = float(row[name])
    except ValueError as error:
        raise _Wrong(f"line {line}: {name} is {row[name]!r}, not a number of seconds") from error
    if not math.isfinite(seconds) or not 0 <= seconds <= MAX_SECONDS:
        raise _Wrong(f"line {line}: {name} is {row[name]}: give seconds from the trace's start, 0 or more")
    return round(seconds * NS)


def _count(line: int, row: Row) -> int:
    text = row["available"].strip()
    if not (text.isascii() and text.isdigit()) or int(text[:9]) > MAX_NODES or len(text) > 9:
        raise _Wrong(f"line {line}: available is {text!r}: give a whole number of nodes, 0 to {MAX_NODES}")
    return int(text)


def _instant(line: int, row: Row, name: str) -> int:
    try:
        return int(parse_rfc3339(row[name]))
    except (ValueError, OverflowError) as error:
        raise _Wrong(f"line {line}: {name} is {row[name]!r}: {error}") from error
