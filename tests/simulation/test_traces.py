"""Test traces of spot machines: which workers are up when, and which traces are invalid."""

from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.domain.time import NS
from tuner.simulator.traces import Trace, TraceError, UpTimes, drawn, load_traces

INTERVALS = "trace_id,kind,cloud,zone,instance_type,accelerator,nodes_wanted,start_s,end_s,available"
COUNTS = "trace_id,cloud,zone,instance_type,accelerator,time_s,available,event"


def file(folder: Path, header: str, *rows: str) -> Path:
    path = folder / "trace.csv"
    path.write_text("\n".join([header, *rows, ""]))
    return path


def interval(start: object, end: object, available: object, trace: str = "a") -> str:
    return f"{trace},availability,aws,us-east-1a,p3.2xlarge,V100:1,1,{start},{end},{available}"


def count(time: object, available: object, trace: str = "a") -> str:
    return f"{trace},aws,,p3.2xlarge,V100:1,{time},{available},+1/-0"


def seconds(trace: Trace) -> list[tuple[float, float, int]]:
    return [(a / NS, b / NS, nodes) for a, b, nodes in trace.segments]


def test_intervals_are_read_and_gaps_have_no_nodes(tmp_path: Path) -> None:
    rows = [interval(100, 200, 1), interval(200, 250.5, 0), interval(300, 400, 1), interval(0, 10, 3, "b")]
    first, second = load_traces(file(tmp_path, INTERVALS, *rows))
    assert seconds(first) == [(0, 100, 1), (100, 150.5, 0), (150.5, 200, 0), (200, 300, 1)]
    assert (first.name, second.name, second.nodes) == ("a", "b", 3)


def test_counts_last_until_the_next_change(tmp_path: Path) -> None:
    traces = load_traces(file(tmp_path, COUNTS, count(0, 4), count(60, 2), count(60, 1), count(90, 4)))
    assert seconds(traces[0]) == [(0, 60, 4), (60, 90, 1)]


def test_workers_are_up_in_proportion_to_nodes_and_the_trace_repeats(tmp_path: Path) -> None:
    trace = load_traces(file(tmp_path, COUNTS, count(0, 4), count(10, 2), count(30, 3), count(50, 3)))[0]
    up = [list(islice(times, 2)) for times in trace.up_times(2)]
    assert up[0] == [UpTimes(0, None)]
    assert up[1] == [UpTimes(0, 10 * NS), UpTimes(50 * NS, 60 * NS)]
    assert next(trace.up_times(2, start_ns=40 * NS)[1]) == UpTimes(10 * NS, 20 * NS)


@st.composite
def segment_lists(draw: st.DrawFn) -> Trace:
    lengths = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), min_size=1, max_size=8))
    segments, at = [], 0
    for length, nodes in lengths:
        segments.append((at, at + length, nodes))
        at += length
    return Trace("a", tuple(segments))


@given(trace=segment_lists(), workers=st.integers(1, 6), start=st.integers(0, 500))
def test_number_of_workers_up_follows_the_trace_at_every_time(trace: Trace, workers: int, start: int) -> None:
    if not trace.nodes:
        return
    spans = [list(islice(times, 60)) for times in trace.up_times(workers, start_ns=start)]
    for at in range(60):
        place = (at + start) % trace.length_ns
        nodes = next(count for a, b, count in trace.segments if a <= place < b)
        up = [
            any(s.begin_ns <= at and (s.end_ns is None or at < s.end_ns) for s in worker) for worker in spans
        ]
        assert up == [count < nodes * workers // trace.nodes for count in range(workers)]
    for worker_spans in spans:
        for before, after in pairwise(worker_spans):
            assert before.end_ns is not None
            assert before.begin_ns < before.end_ns < after.begin_ns


GOOD = interval(0, 10, 1)
BAD: dict[str, tuple[str, list[str], str]] = {
    "out of order": (INTERVALS, [interval(10, 20, 1), interval(0, 10, 1)], "line 3"),
    "an overlap": (INTERVALS, [GOOD, interval(9, 20, 1)], "line 3"),
    "no length": (INTERVALS, [interval(5, 5, 1)], "line 2"),
    "a negative time": (INTERVALS, [interval(-5, 5, 1)], "line 2"),
    "NaN": (INTERVALS, [GOOD, interval("nan", 20, 1)], "line 3: start_s"),
    "infinity": (INTERVALS, [interval(0, "inf", 1)], "line 2: end_s"),
    "no number": (INTERVALS, [interval(0, "soon", 1)], "line 2: end_s"),
    "minus one node": (INTERVALS, [interval(0, 9, -1)], "line 2: available"),
    "half a node": (INTERVALS, [interval(0, 9, 0.5)], "line 2: available"),
    "a googol of nodes": (INTERVALS, [interval(0, 9, "9" * 5000)], "line 2: available"),
    "a field too few": (INTERVALS, [GOOD.rpartition(",")[0]], "line 2"),
    "a field too many": (INTERVALS, [GOOD + ",1"], "line 2"),
    "an open quote": (INTERVALS, [GOOD, '"a'], "line 2 or the one after"),
    "prices": ("time_utc,zone,instance_type,spot_usd_h", ["2019-12-20T06:39:10Z,z,t,1"], "line 1"),
    "no header": ("", [], "line 1"),
    "no rows": (INTERVALS, [], "line 1"),
    "counts that go back": (COUNTS, [count(9, 1), count(3, 1)], "line 3"),
    "one count": (COUNTS, [count(0, 1)], "line 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_trace_is_refused_with_file_and_line(tmp_path: Path, name: str) -> None:
    header, rows, place = BAD[name]
    path = file(tmp_path, header, *rows)
    with pytest.raises(TraceError) as refused:
        load_traces(path)
    assert str(path) in refused.value.detail
    assert place in refused.value.detail


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x00" * 100, b"PK\x03\x04"])
def test_file_that_is_not_text_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trace.csv").write_bytes(content)
    for path in (tmp_path / "trace.csv", tmp_path, tmp_path / "none.csv"):
        with pytest.raises(TraceError):
            load_traces(path)


@given(text=st.text(max_size=300))
def test_arbitrary_text_is_refused_with_a_trace_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(f"{INTERVALS}\n{text}".encode("utf-8", "replace"))
    with pytest.raises(TraceError):
        load_traces(path)


def test_trace_without_usable_uptime_is_refused(tmp_path: Path) -> None:
    for row in (interval(0, 120, 1), interval(0, 600, 0)):  # AWS gives two minutes
        with pytest.raises(TraceError, match="notice"):
            drawn(file(tmp_path, INTERVALS, row, interval(600, 690, 0)), seed=0)


def test_seed_draws_trace_and_start(tmp_path: Path) -> None:
    path = file(tmp_path, INTERVALS, *(interval(0, 1000, 1, trace) for trace in "abcdef"))
    assert drawn(path, seed=1) == drawn(path, seed=1)
    assert len({drawn(path, seed=seed)[0].name for seed in range(50)}) == 6


def test_bundled_fleet_trace_is_read() -> None:
    trace = load_traces("bamboo")[0]
    assert trace.nodes > 16
    assert trace.length_ns > 3600 * NS
