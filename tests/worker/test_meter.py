"""Property tests of the stopwatch of an attempt: a value that was shown never decreases."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tuner.worker.metering import (
    MAX_LOG_BYTES,
    MAX_READ_BYTES,
    READS,
    DatasetReads,
    ReadLog,
    Stopwatch,
    UsageMeter,
)

KINDS = st.sampled_from(["setup", "train", "checkpoint", "idle"])
INSTANTS = st.integers(0, 1000)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("switch"), KINDS, INSTANTS),
            st.tuples(st.just("read"), st.integers(0, 50), INSTANTS),
        )
    )
)
def test_shown_times_never_decrease_or_exceed_the_lease(readings: list[tuple[str, object, int]]) -> None:
    """Messages may arrive after a reading of a later instant. Leases only grow."""
    watch, lease, before = Stopwatch("setup", 0), 100, dict[str, int]()
    for what, value, at in readings:
        if what == "switch":
            watch.switch(str(value), at)
            continue
        lease += int(str(value))
        shown = watch.reading(lease, at)
        assert sum(shown.values()) <= lease
        assert all(shown.get(kind, 0) >= ns for kind, ns in before.items())
        before = shown


def test_log_of_datasets_counts_valid_lines_once(tmp_path: Path) -> None:
    log = ReadLog(tmp_path)
    file = (tmp_path / READS).open("ab", buffering=0)

    def after(text: bytes) -> DatasetReads | None:
        file.write(text)
        return log.take()

    assert after(b"") is None
    assert after(b"10 0 0\n7 7 1\n5") == DatasetReads(17, 7, True)
    assert after(b" 5 0\n") == DatasetReads(5, 5, False)
    assert after(b"0 0 0\n") == DatasetReads(0, 0, False)
    assert after(b"-1 0 0\nx y 0\n1 2\n\n\xff 1 1\n1 9 1\n") == DatasetReads(1, 1, True)
    assert after(b"9" * 19 + b" 0 0\n" + b"9" * 30 + b" 0 0\n") == DatasetReads(MAX_READ_BYTES, 0, False)
    assert after(b"1" * MAX_LOG_BYTES) is None
    assert after(b"3 0 0\n") == DatasetReads(3, 0, False)
    meter = UsageMeter()
    for _ in range(3):
        meter.datasets(DatasetReads(MAX_READ_BYTES, 1, False))
    assert meter.reading() == {"data_read_bytes": MAX_READ_BYTES, "data_bucket_bytes": 3, "facts": {}}
    file.close()
    log.close()
