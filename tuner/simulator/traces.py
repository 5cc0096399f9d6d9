"""Recorded availability of spot machines, which determines when the simulated workers are up.

Two CSV formats are supported. They are distinguished by their columns. Each may contain any number of traces:

- intervals: `trace_id, start_s, end_s, available` (nodes), ascending, without overlap. No node is available in gaps.
- counts: `trace_id, time_s, available`, with one row for each change of the number of available nodes.

An optional column `cloud` determines how long before a preemption its notice comes. Other columns are ignored.

The fraction of workers that are up equals the number of available nodes divided by the largest number of available nodes in the trace.
The resulting number of workers is rounded down. The workers with the highest index are taken away first. When a trace ends, it starts again.
"""

import csv
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

from tuner.domain.errors import BadFile
from tuner.domain.time import MAX_SECONDS, NS

MAX_BYTES = 100_000_000
NOTICE_NS = 120 * NS
NOTICES_NS = {"aws": 120 * NS, "gcp": 30 * NS, "azure": 30 * NS}
SHIPPED = Path(__file__).parent / "spot_markets"
Segment = tuple[int, int, int]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
Nodes = Annotated[int, Field(ge=0, le=100_000)]


class TraceError(BadFile):
    """The trace cannot be used."""


@dataclass(frozen=True, slots=True)
class UpTimes:
    """A period in which a worker is up, in nanoseconds from the start of the run. An `end_ns` of None means the end of the run."""

    begin_ns: int
    end_ns: int | None


@dataclass(frozen=True)
class Trace:
    """A recorded trace: the number of available nodes over time."""

    name: str
    segments: tuple[Segment, ...]  #: (begin, end, nodes) in nanoseconds, from 0 and without gaps.
    cloud: str = ""  #: Empty if unknown.

    @property
    def length_ns(self) -> int:
        return self.segments[-1][1]

    @property
    def notice_ns(self) -> int:
        """How long before a preemption the trace's cloud promises a notice."""
        return NOTICES_NS.get(self.cloud.lower(), NOTICE_NS)

    @property
    def nodes(self) -> int:
        return max(count for _, _, count in self.segments)

    def up_times(self, workers: int, *, start_ns: int = 0) -> list[Iterator[UpTimes]]:
        """Return the periods in which each of `workers` workers is up, if the run starts at the time `start_ns` of the trace."""
        start_ns %= self.length_ns
        turned = [(max(a, start_ns) - start_ns, b - start_ns, n) for a, b, n in self.segments if b > start_ns]
        to_end_ns = self.length_ns - start_ns
        turned += [
            (a + to_end_ns, min(b, start_ns) + to_end_ns, n) for a, b, n in self.segments if a < start_ns
        ]
        return [
            self._repeated([(a, b) for a, b, count in turned if count * workers >= (worker + 1) * self.nodes])
            for worker in range(workers)
        ]

    def _repeated(self, up: list[tuple[int, int]]) -> Iterator[UpTimes]:
        """Yield a worker's up times when the trace is repeated without an end. `up` has the up times in one pass of the trace.

        Adjacent periods are merged. If the worker is up all the time, yield a single period that does not end.
        """
        if sum(b - a for a, b in up) == self.length_ns:
            yield UpTimes(0, None)
            return
        begin, end = up[0]
        for start in itertools.count(0, self.length_ns):
            for a, b in up:
                if start + a > end:
                    yield UpTimes(begin, end)
                    begin = start + a
                end = start + b

    @property
    def is_usable(self) -> bool:
        """Whether a run with one worker could make progress: whether that worker is ever up for longer than the notice."""
        if not self.nodes:
            return False
        spans = itertools.islice(self.up_times(1)[0], len(self.segments))
        return any(span.end_ns is None or span.end_ns - span.begin_ns > self.notice_ns for span in spans)


def drawn(path: Path | str, *, seed: int) -> tuple[Trace, int]:
    """Draw a random usable trace from a file, and a random time in that trace at which to start, in nanoseconds.

    `path` may also be the name of a trace file that is shipped with the package.

    Raises:
        TraceError: The file cannot be read, or has no usable trace.
    """
    usable = [trace for trace in load_traces(path) if trace.is_usable]
    if not usable:
        raise TraceError(f"{path}: no node is up for longer than the preemption notice: use another trace")
    rng = Random(f"preemptions/{seed}")
    trace = rng.choice(usable)
    return trace, rng.randrange(trace.length_ns)


def load_traces(path: Path | str) -> list[Trace]:
    """Return all traces of a file, in the order of the file. `path` may also be the name of a file that is shipped with the package.

    Raises:
        TraceError: The file cannot be used. The message names the file, the line and how to fix it.
    """
    shipped = {file.stem: file for file in SHIPPED.glob("*.csv")}
    if not Path(path).exists():
        if str(path) not in shipped:
            names = ", ".join(sorted(shipped))
            raise TraceError(
                f"{path}: the file does not exist: name a file, or a trace that tuner includes: {names}"
            )
        path = shipped[str(path)]
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES} bytes: keep only the traces that you need")
        return _traces(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: {error}") from error


R = TypeVar("R", bound=BaseModel)


class _Interval(BaseModel):
    start_s: Seconds
    end_s: Seconds
    available: Nodes


class _Change(BaseModel):
    time_s: Seconds
    available: Nodes


def _traces(text: str) -> list[Trace]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    columns = set(reader.fieldnames or [])
    if not {"trace_id", "available"} <= columns or not (
        {"start_s", "end_s"} <= columns or "time_s" in columns
    ):
        raise ValueError(
            "line 1: the header must name the columns trace_id, start_s, end_s and available, or trace_id, time_s and available"
        )
    groups: dict[str, list[tuple[int, dict[str, str]]]] = {}
    try:
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(
                    f"line {reader.line_num}: the row does not have as many fields as the header: give one field per column"
                )
            groups.setdefault(row["trace_id"], []).append((reader.line_num, row))
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} or the one after is not valid CSV: {error}") from error
    if not groups:
        raise ValueError("line 1: the file has a header but no rows")
    read = _intervals if "start_s" in columns else _counts
    return [Trace(name, tuple(read(rows)), rows[0][1].get("cloud", "")) for name, rows in groups.items()]


def _intervals(rows: list[tuple[int, dict[str, str]]]) -> Iterator[Segment]:
    """Yield the segments of a trace in the intervals format, shifted to start at 0. Gaps become segments with 0 nodes."""
    zero: int | None = None
    last = 0
    for line, row in rows:
        interval = _valid(_Interval, line, row)
        begin, end = round(interval.start_s * NS), round(interval.end_s * NS)
        zero = begin if zero is None else zero
        if end <= begin:
            raise ValueError(f"line {line}: end_s is not after start_s: give each interval a length")
        if begin - zero < last:
            raise ValueError(
                f"line {line}: the interval begins before the previous one ends: sort the intervals, and remove overlaps"
            )
        if begin - zero > last:
            yield last, begin - zero, 0
        yield begin - zero, end - zero, interval.available
        last = end - zero


def _counts(rows: list[tuple[int, dict[str, str]]]) -> Iterator[Segment]:
    changes = [_valid(_Change, line, row) for line, row in rows]
    zero = round(changes[0].time_s * NS)
    length = 0
    for (line, _), (change, following) in zip(rows[1:], itertools.pairwise(changes), strict=True):
        begin, end = round(change.time_s * NS) - zero, round(following.time_s * NS) - zero
        if end < begin:
            raise ValueError(f"line {line}: time_s is less than in the row above: sort the changes by time")
        if end > begin:
            yield begin, end, change.available
            length = end
    if not length:
        raise ValueError(f"line {rows[-1][0]}: the trace has no length: give at least two different times")


def _valid(kind: type[R], line: int, row: dict[str, str]) -> R:
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ValueError(
            f"line {line}: {wrong['loc'][0]} is {wrong['input'][:100]!r}: {wrong['msg']}"
        ) from error
