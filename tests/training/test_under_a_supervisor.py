"""Test `SpotSafe` with a supervisor at the other end of its channel: the messages, and the effect of each
reply.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from tests.training.counting import Count
from tuner.training import (
    CheckpointUnreadable,
    Exported,
    MetricsRefused,
    SpotSafe,
    StopTraining,
    channel,
    checkpoint,
)
from tuner.training.artifacts import ArtifactRefused, folder_of
from tuner.training.channel import BeginMessage, begin_message, open_channel, reply_message
from tuner.training.framework_run import FrameworkRun


class Supervisor:
    """A supervisor with predefined replies, which records the messages it receives."""

    def __init__(self, staging: Path) -> None:
        self._ours, self._theirs = Pipe()
        self.staging = staging

    def begin(self, **more: Any) -> None:
        begin = BeginMessage("trial_1", 1, "module:train", {}, str(self.staging), **more)
        self._ours.send_bytes(begin_message(begin))
        open_channel(self._theirs)

    def answers(self, *replies: str) -> None:
        """Send these replies: `continue`, `continue and save`, `stop`, or `stop and save`."""
        for reply in replies:
            self._ours.send_bytes(reply_message(stop="stop" in reply, save="save" in reply))

    def messages_of(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the messages that arrived since the last call, or those of one kind."""
        messages = []
        while self._ours.poll():
            messages.append(json.loads(self._ours.recv_bytes()))
        return [message for message in messages if kind in (None, message["type"])]

    def close(self) -> None:
        for end in (self._ours, self._theirs):
            assert isinstance(end, Connection)
            end.close()


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setattr(channel, "_current", None)
    tested_supervisor = Supervisor(tmp_path / "staging")
    tested_supervisor.staging.mkdir()
    yield tested_supervisor
    tested_supervisor.close()


def count(run: SpotSafe, counter: Count) -> list[float]:
    seen = []
    with run:
        for _ in run.steps():
            counter.value += 1
            seen.append(float(counter.value))
            run.report(count=counter.value)
    return seen


def test_second_training_of_a_trial_that_has_reported_is_refused(supervisor: Supervisor) -> None:
    supervisor.begin(first_step=3, max_step=9)
    with SpotSafe(), SpotSafe() as run:  # no step was reported yet
        supervisor.answers("continue", "continue")
        for _ in range(2):
            next(run.steps())
            run.report(acc=1.0)
    with pytest.raises(RuntimeError, match=r"already reported steps.* make each of them a step"):
        SpotSafe().__enter__()
    with pytest.raises(RuntimeError, match="already reported steps"):
        FrameworkRun().begin()


def test_plain_script_may_train_several_times() -> None:
    for _ in range(2):
        with SpotSafe(steps=1) as run:
            for _ in run.steps():
                run.report(acc=1.0)


METRICS = [
    (float("nan"), "NaN"),
    (float("inf"), "Infinity"),
    (-math.inf, "-Infinity"),
    (torch.tensor(float("nan")), "NaN"),
    (torch.tensor([[2.5]], requires_grad=True), 2.5),
    (numpy.float64("inf"), "Infinity"),
    (numpy.float32(0.5), 0.5),
    (numpy.int64(3), 3),
    (torch.tensor(True), True),
    (7, 7),
    ("words", "words"),
    (None, None),
]


@pytest.mark.parametrize(("value", "sent"), METRICS, ids=[repr(value) for value, _ in METRICS])
def test_metrics_are_sent_as_plain_values_including_nan_and_infinity(
    supervisor: Supervisor, value: object, sent: object
) -> None:
    supervisor.begin(max_step=1)
    supervisor.answers("continue")
    with SpotSafe() as run:
        for _ in run.steps():
            run.report(metric=value)
    (report,) = supervisor.messages_of("report")
    assert report["metrics"] == {"metric": sent}
    assert type(report["metrics"]["metric"]) is type(sent)
    assert report["resumable"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *(
            (value, "accuracy")
            for value in (object(), [1.0], {"a": 1}, torch.zeros(2), numpy.zeros(3), 1 + 2j)
        ),
        pytest.param(SimpleNamespace(item=3), "accuracy", id="item that is not a method"),
        pytest.param(10**5000, "accuracy", id="huge integer"),
        ("x" * (1 << 16), "too large"),
    ],
    ids=lambda value: str(value)[:20],
)
@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "in a script"])
def test_metric_that_cannot_be_recorded_is_refused_by_name(
    supervisor: Supervisor, value: object, reason: str, supervised: bool
) -> None:
    if supervised:
        supervisor.begin(max_step=1)
        supervisor.answers("continue")  # so that a report that is not refused returns
    with SpotSafe(steps=1) as run:
        next(run.steps())
        with pytest.raises(MetricsRefused, match=reason):
            run.report(accuracy=value)
    assert supervisor.messages_of("report") == []


@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "in a script"])
def test_report_of_too_many_metrics_is_refused(supervisor: Supervisor, supervised: bool) -> None:
    if supervised:
        supervisor.begin(max_step=1)
        supervisor.answers("continue")  # so that a report that is not refused returns
    with SpotSafe(steps=1) as run:
        next(run.steps())
        with pytest.raises(MetricsRefused, match="1001 metrics is too large; report at most 1000"):
            run.report(**{f"m{n}": n for n in range(1001)})
    assert supervisor.messages_of("report") == []


def test_artifacts_are_copied_before_the_report_returns(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.begin(max_step=1)
    supervisor.answers("continue")
    (tmp_path / "plot").write_bytes(b"picture")
    with SpotSafe() as run:
        next(run.steps())
        run.report(acc=1.0, artifacts={"plot.png": tmp_path / "plot"})
    (report,) = supervisor.messages_of("report")
    assert report["artifacts"] == ["plot.png"]
    assert (folder_of(supervisor.staging, 1) / "plot.png").read_bytes() == b"picture"


@pytest.mark.parametrize(
    ("artifacts", "reason"),
    [
        ({"../plot.png": "small"}, "is not a valid name for an artifact"),
        ({"": "small"}, "is not a valid name for an artifact"),
        ({"a": "missing"}, "cannot be read"),
        ({"a": "."}, "not a regular file"),
        ({"a": "large"}, "more than 8388608 bytes"),
        ({f"{number}": "small" for number in range(17)}, "report at most 16 at once"),
        ({"a": "small"}, "of which 2 were left for this attempt"),
    ],
)
def test_artifact_beyond_a_limit_is_refused_by_name(
    supervisor: Supervisor,
    tmp_path: Path,
    artifacts: dict[str, str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small").write_bytes(b"123")
    with Path("large").open("wb") as large:
        large.truncate((8 << 20) + 1)
    supervisor.begin(max_step=1, artifact_room=2)
    with SpotSafe() as run:
        next(run.steps())
        with pytest.raises(ArtifactRefused, match=reason):
            run.report(acc=1.0, artifacts=artifacts)
    assert supervisor.messages_of("report") == []


def test_service_determines_the_number_of_steps(supervisor: Supervisor) -> None:
    supervisor.begin(max_step=3)
    supervisor.answers("continue", "continue", "continue")
    assert count(SpotSafe(steps=99), Count()) == [1, 2, 3]


def test_proxies_follow_the_rung(supervisor: Supervisor) -> None:
    supervisor.begin(max_step=5, rungs=[1, 3], proxies={"resolution": [16, 32]})
    supervisor.answers(*["continue"] * 5)
    seen = []
    with SpotSafe() as run:
        for _ in run.steps():
            seen.append((run.rung, run.fidelity("resolution"), run.fidelity("data_fraction", 1.0)))
            run.report(count=1)
        with pytest.raises(KeyError, match="which has resolution"):
            run.fidelity("data_fraction")
        assert run.total_steps == 5
    assert seen == [(0, 16, 1.0), *[(1, 32, 1.0)] * 4]
    assert type(seen[0][1]) is int


def test_predictions_are_priced_at_the_machine_of_the_job_or_another(supervisor: Supervisor) -> None:
    with pytest.raises(ValueError, match="usd_per_hour="):
        SpotSafe(steps=1).usd_per_million(1.0)
    supervisor.begin(usd_per_hour=0.36)
    with SpotSafe() as run:
        assert run.usd_per_million(2.5) == pytest.approx(0.25)  # 2500 s at $0.0001 per second
        assert run.usd_per_million(2.5, usd_per_hour=3.6) == pytest.approx(2.5)


@pytest.mark.parametrize("reported", [{}, {"latency_ms": 2.5}, {"usd_per_million": 1.0, "latency_ms": 3.0}])
def test_missing_metrics_of_serving_are_measured_once_on_the_exported_module(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, reported: dict[str, float]
) -> None:
    def export(config: dict[str, Any], state: dict[str, Any]) -> Exported:
        exported.append((config, float(state["counter"]["value"])))
        torch.rand(3)  # as building a module does
        return Exported(torch.nn.Linear(2, 1), (torch.zeros(4, 2),), lambda predict: 0.0)

    exported: list[tuple[dict[str, Any], float]] = []
    monkeypatch.setitem(sys.modules, "module", SimpleNamespace(export=export))
    supervisor.begin(max_step=2, usd_per_hour=0.36, serving_metrics=["latency_ms", "usd_per_million"])
    supervisor.answers("continue", "continue")
    torch.manual_seed(7)
    drawn, counter = [], Count()
    with SpotSafe(counter=counter) as run:
        for _ in run.steps():
            counter.value += 1
            drawn.append(float(torch.rand(())))
            run.report(acc=1.0, **reported)
    torch.manual_seed(7)
    assert drawn == [float(torch.rand(())) for _ in range(2)]
    assert exported == ([] if reported else [({}, 1.0)])
    first, second = (report["metrics"] for report in supervisor.messages_of("report"))
    assert first == second
    assert first["latency_ms"] > 0
    assert first | reported == first
    price = (
        reported.get("usd_per_million") or first["latency_ms"] / 10
    )  # 1000 s for each ms, at $0.0001 per second
    assert first["usd_per_million"] == pytest.approx(price)


@pytest.mark.parametrize("module", [SimpleNamespace(), SimpleNamespace(export=torch.export)])
def test_metrics_of_serving_are_left_out_without_an_export(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, module: SimpleNamespace
) -> None:
    monkeypatch.setitem(sys.modules, "module", module)
    supervisor.begin(max_step=1, serving_metrics=["latency_ms"])
    supervisor.answers("continue")
    assert count(SpotSafe(), Count()) == [1]
    (report,) = supervisor.messages_of("report")
    assert report["metrics"] == {"count": 1.0}


def test_latency_that_is_text_is_recorded_unchanged(supervisor: Supervisor) -> None:
    supervisor.begin(max_step=1, usd_per_hour=0.36, serving_metrics=["usd_per_million"])
    supervisor.answers("continue")
    with SpotSafe(count=Count()) as run:
        for _ in run.steps():
            run.report(latency_ms="slow")
    (report,) = supervisor.messages_of("report")
    assert report["metrics"] == {"latency_ms": "slow"}


def test_a_question_in_a_step_is_sent_at_most_every_tenth_of_a_second(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(channel, "time", clock)
    supervisor.begin(max_step=5, first_step=2)
    supervisor.answers("continue", "continue and save", "stop and save")
    counter = Count()
    with SpotSafe(count=counter) as run:
        next(run.steps())
        for _ in range(10):
            run.checkpoint_if_due()
        assert len(supervisor.messages_of("ask")) == 1
        now[0] += channel.ASK_S
        run.checkpoint_if_due()
        now[0] += channel.ASK_S
        with pytest.raises(StopTraining):
            run.checkpoint_if_due()
    assert [(saved["step"], saved["part"]) for saved in supervisor.messages_of("saved")] == [(2, 1), (2, 2)]


def test_stop_ends_the_attempt_without_an_error_or_a_save(supervisor: Supervisor) -> None:
    supervisor.begin(max_step=9)
    supervisor.answers("continue", "stop")
    with pytest.raises(StopTraining) as stopped:
        count(SpotSafe(), Count())
    assert stopped.value.code == 0
    assert not issubclass(StopTraining, Exception)  # `except Exception` in user code does not catch it
    assert list(supervisor.staging.iterdir()) == []


def test_stop_with_save_saves_before_it_ends_and_the_next_attempt_resumes(supervisor: Supervisor) -> None:
    supervisor.begin(max_step=9)
    supervisor.answers("continue", "stop and save")
    counter = Count()
    with pytest.raises(StopTraining):
        count(SpotSafe(count=counter), counter)
    (saved,) = supervisor.messages_of("saved")
    assert saved["step"] == 2
    supervisor.begin(max_step=3, restore=saved["path"], first_step=2)
    supervisor.answers("continue")
    again = Count()
    assert count(SpotSafe(count=again), again) == [3]
    assert [report["step"] for report in supervisor.messages_of("report")] == [3]


def test_requested_save_is_complete_when_the_run_ends(supervisor: Supervisor) -> None:
    supervisor.begin(max_step=2)
    supervisor.answers("continue and save", "continue")
    counter = Count()
    assert count(SpotSafe(count=counter), counter) == [1, 2]
    messages = supervisor.messages_of()
    (saved,) = (message for message in messages if message["type"] == "saved")
    state = torch.load(Path(saved["path"]) / checkpoint.STATE_FILE, weights_only=True)
    assert state["step"] == state["parts"]["count"]["value"].item() == 1
    phases = [message["kind"] for message in messages if message["type"] == "phase"]
    assert phases == ["train", "checkpoint", "train", "train"]


@pytest.mark.parametrize("reply", ["continue", "continue and save"])
def test_run_that_ends_early_saves_its_last_step(supervisor: Supervisor, reply: str) -> None:
    supervisor.begin()
    supervisor.answers("continue", reply)
    counter = Count()
    with SpotSafe(count=counter) as run:
        for step in run.steps():
            counter.value += 1
            run.report(count=counter.value)
            if step == 1:
                break
    (saved,) = supervisor.messages_of("saved")
    assert saved["step"] == 2
    state = torch.load(Path(saved["path"]) / checkpoint.STATE_FILE, weights_only=True)
    assert state["parts"]["count"]["value"].item() == 2


def test_run_left_in_the_middle_of_a_step_saves_nothing(supervisor: Supervisor) -> None:
    supervisor.begin()
    supervisor.answers("continue")
    with SpotSafe(count=Count()) as run:
        for step in run.steps():
            if step == 1:
                break
            run.report(count=1)
    assert supervisor.messages_of("saved") == []


# PyTorch raises RuntimeError if the disk is full.
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("[enforce fail] . unexpected pos 8384")]
)
def test_failed_save_is_reported_and_training_continues(
    supervisor: Supervisor,
    unwritable: Callable[[Exception], None],
    error: Exception,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unwritable(error)
    supervisor.begin(max_step=2)
    supervisor.answers("continue and save", "continue")
    counter = Count()
    assert count(SpotSafe(count=counter), counter) == [1, 2]
    (failed,) = supervisor.messages_of("save_failed")
    assert failed["step"] == 1
    assert str(error) in failed["detail"]
    assert f"step 1 could not be saved: {type(error).__name__}: {error}" in capsys.readouterr().err
    assert list(supervisor.staging.iterdir()) == []


def test_damaged_checkpoint_is_named_in_the_error(supervisor: Supervisor, tmp_path: Path) -> None:
    (tmp_path / checkpoint.STATE_FILE).write_bytes(b"damaged")
    supervisor.begin(max_step=9, restore=str(tmp_path), first_step=2)
    with pytest.raises(CheckpointUnreadable, match=str(tmp_path)), SpotSafe():
        pass
