"""Test that the output of user code is stored with the job, however the attempt ends, and that the outputs
of attempts are not mixed up.
"""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.object_storage import Bucket
from tuner.checkpoints.attempt_logs import Printed, TrialLogs
from tuner.worker import logs as pumping

TRIAL = ("default", "job_1", "trial_00000")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the worker's wait for the last output from a second to four minutes, because the output may arrive
    late on a busy machine.
    """
    monkeypatch.setattr(pumping, "LAST_S", 240.0)


def logs_of(storage: object) -> TrialLogs:
    return TrialLogs(str(storage), *TRIAL)


def read_soon(logs: TrialLogs, attempt: int) -> Printed:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        printed = logs.read(attempt)
        if printed is not None:
            return printed
        time.sleep(0.01)
    raise AssertionError("there is no log after four minutes")


@given(
    data=st.binary(max_size=60),
    head=st.integers(1, 20),
    tail=st.integers(1, 20),
    after=st.integers(0, 70),
    limit=st.integers(1, 80),
)
def test_shown_output_is_the_end_of_the_kept_output(
    data: bytes, head: int, tail: int, after: int, limit: int
) -> None:
    kept = [*range(min(head, len(data))), *range(max(head, len(data) - tail), len(data))]
    printed = Printed(len(data), data[:head], data[head:][-tail:], complete=True)
    earlier, gap, later = printed.since(after, limit)
    wanted = [place for place in kept if place >= after]
    if gap == 0 and len(kept) < len(data):  # bytes before a gap are shown only together with the gap
        assert earlier == b""
    assert earlier + later == bytes(data[place] for place in wanted[-limit:])
    assert gap == (len(data) - len(kept) if earlier else 0)


def test_log_is_readable_during_the_attempt_and_complete_at_its_end(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pumping, "FIRST_S", 0.01)
    logs = logs_of(tmp_path / "storage")
    driver = drive("prints_and_waits")
    driver.begin()
    printed = read_soon(logs, 1)
    assert (printed.head, printed.complete) == ("it begins, é\n".encode(), False)
    driver.end("stop")
    printed = logs.read(1) or Printed(0, b"", b"", False)
    assert (printed.head, printed.total, printed.complete) == ("it begins, é\n".encode(), 14, True)
    driver.begin()
    read_soon(logs, 2)
    assert logs.attempts() == [1, 2]


def test_last_output_of_a_dying_attempt_is_kept(drive: Any, tmp_path: Path) -> None:
    driver = drive("prints_and_dies")
    driver.begin()
    driver.until_state("failed")
    printed = logs_of(tmp_path / "storage").read(1)
    assert printed is not None
    assert printed.head == b"the last words\n"
    assert printed.complete


def test_long_output_is_kept_by_its_head_and_tail(drive: Any, tmp_path: Path) -> None:
    """It neither blocks the child nor fills the worker's memory."""
    driver = drive("prints_much")
    driver.run_to(1)
    assert 0 < len(driver.supervisor.processes._log.text()) < 1_000_000
    driver.end("stop")
    printed = logs_of(tmp_path / "storage").read(1)
    assert printed is not None
    assert len(printed.head) == pumping.HEAD_BYTES
    assert len(printed.tail) == pumping.TAIL_BYTES
    assert printed.total > len(printed.head) + len(printed.tail)


def test_attempt_without_output_has_no_log(drive: Any, tmp_path: Path) -> None:
    driver = drive("counts")
    driver.run_to(1)
    driver.end("stop")
    assert logs_of(tmp_path / "storage").attempts() == []


def test_unwritable_storage_loses_only_the_log(drive: Any, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("no folder")
    driver = drive("prints_and_ends", storage=str(tmp_path / "a file"))
    driver.begin(target_step=1)
    assert driver.until_state("ended", "finished", "failed")["state"] != "failed"


def test_logs_are_written_to_and_read_from_object_storage(bucket: Bucket) -> None:
    logs = logs_of(bucket.url)
    assert (logs.attempts(), logs.read(1)) == ([], None)
    for complete in (False, True):
        logs.write(3, Printed(7, b"abc", b"de", complete))
    printed = logs.read(3)
    assert printed is not None
    assert (logs.attempts(), printed.total, printed.head, printed.tail, printed.complete) == (
        [3],
        7,
        b"abc",
        b"de",
        True,
    )


def test_invalid_log_file_raises_value_error(tmp_path: Path) -> None:
    folder = tmp_path.joinpath("storage", *TRIAL, "logs")
    folder.mkdir(parents=True)
    for text in ("", "nonsense\n", "[]\n", '{"version": 99}\n'):
        (folder / "a1.log").write_text(text)
        with pytest.raises(ValueError, match="attempt 1"):
            logs_of(tmp_path / "storage").read(1)
