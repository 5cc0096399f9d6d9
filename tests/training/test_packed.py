"""Packed trainables: real processes of trials, which train with a batch process over a real socket or alone."""

import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.strategies import examples
from tests.training import packed_cases
from tests.training.packed_cases import loss, make, optimizer, train
from tests.worker.driving import Driver
from trainables import digits_packed
from tuner.training import AdamW, BatchFailed, Packed, Sgd, SpotSafe, batch_process, channel
from tuner.training.channel import BeginMessage, begin_message, open_channel, reply_message
from tuner.training.checkpoint import read_parts
from tuner.training.vmapped import BatchMember, Trainer, _Pace, structure
from tuner.worker.probe import describe

Reports = list[dict[str, float]]
SGD: list[dict[str, Any]] = [
    {"lr": 0.01 * (seed + 1), "momentum": 0.3 * seed, "seed": seed} for seed in range(3)
]
ADAM: list[dict[str, Any]] = [
    {"lr": 0.003 * (seed + 1), "adam": True, "decay": 0.1 * seed, "beta1": 0.8 + 0.05 * seed, "seed": seed}
    for seed in range(3)
]
LIMIT_S = 60  # for hangs only
REPORT = SpotSafe.report


def fork(body: Callable[[], None]) -> int:
    """Run `body` in a forked process, and return its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)  # the threads of the parent do not exist in a fork
            body()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


class Trial:
    """The process of one trial, and the test in the place of its supervisor."""

    def __init__(self, packed: Packed, config: dict[str, Any], folder: Path, **begin: Any) -> None:
        self._ours, theirs = Pipe()
        self.reports: Reports = []
        self.failure: dict[str, Any] | None = None
        self.saved: Path | None = None
        folder.mkdir(parents=True, exist_ok=True)
        message = BeginMessage("trial", 1, f"{__name__}:train", config, str(folder), **begin)
        self._ours.send_bytes(begin_message(message))

        def body() -> None:
            self._ours.close()
            assert isinstance(theirs, Connection)
            opened = open_channel(theirs)
            try:
                packed(config)
            except Exception as error:
                text = "".join(traceback.format_exception(error))
                opened.failed(type(error).__name__, str(error), text)
            else:
                opened.ended()

        self.pid = fork(body)
        theirs.close()

    def step(self, *, stop: bool = False, save: bool = False) -> bool:
        """Wait for the next report, and reply to it. Return False if the trial has ended instead."""
        while (message := self._next()) is not None:
            if message["type"] == "report":
                self.reports.append({name: float(value) for name, value in message["metrics"].items()})
                with suppress(ConnectionError):  # the trial may have been killed since
                    self._ours.send_bytes(reply_message(stop=stop, save=save))
                return True
        return False

    def finish(self) -> Reports:
        """Let the trial train to its last step, and return all reports."""
        while self.step():
            pass
        return self.reports

    def wait_for_end(self) -> None:
        while self._next() is not None:
            pass

    def _next(self) -> dict[str, Any] | None:
        assert self._ours.poll(LIMIT_S), "the trial hangs"
        try:
            message: dict[str, Any] = json.loads(self._ours.recv_bytes())
        except (EOFError, ConnectionError):
            return None
        if message["type"] == "failed":
            self.failure = message
        if message["type"] == "saved":
            self.saved = Path(message["path"])
        return message

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Worker:
    """Starts trials, and a batch process for each packed trainable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pids: list[int] = []
        self._paths: dict[Packed, str] = {}
        self._number = 0

    def batch_process(self, packed: Packed = train) -> int:
        path = str(self._folder / f"batch{len(self._paths)}")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        self._paths[packed] = path
        self.pids.append(fork(lambda: packed.serve(listener)))
        listener.close()
        return self.pids[-1]

    def trial(self, config: dict[str, Any], packed: Packed = train, *, steps: int = 4, **begin: Any) -> Trial:
        """Start a trial. It joins the batch process if there is one."""
        self._number += 1
        begin = {"max_step": steps, "batch_socket": self._paths.get(packed), **begin}
        trial = Trial(packed, config, self._folder / f"trial{self._number}", **begin)
        self.pids.append(trial.pid)
        return trial


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(channel, "_current", None)
    with tempfile.TemporaryDirectory(
        prefix="packed-"
    ) as folder:  # a short path, because it is that of a socket
        started = Worker(Path(folder))
        yield started
        for pid in started.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def alone(config: dict[str, Any], steps: int = 4) -> Reports:
    """Return the reports of a trial that no other trial trains with."""
    member, trainer, reports = BatchMember(0, config, make(config)), Trainer(train._recipe), Reports()
    for step in range(steps):
        member.begin(train._recipe, step)
        while member not in (result := trainer.round([member])).metrics:
            assert result.errors == {}
        reports.append(result.metrics[member])
    return reports


def by_hand(config: dict[str, Any], steps: int = 4) -> Reports:
    """Return the same reports, computed with `torch.optim`."""
    model, reports = make(config), Reports()
    first = optimizer(config, 0)
    if isinstance(first, AdamW):
        rule: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(), first.lr, betas=first.betas, eps=first.eps, weight_decay=first.weight_decay
        )
    else:
        rule = torch.optim.SGD(
            model.parameters(), first.lr, momentum=first.momentum, weight_decay=first.weight_decay
        )
    for step in range(steps):
        rule.param_groups[0]["lr"] = optimizer(config, step).lr
        losses = []
        for batch in packed_cases.batches(config, step):
            rule.zero_grad()
            value = loss(model, batch)
            value.backward()
            rule.step()
            losses.append(value.item())
        with torch.no_grad():
            metrics = {name: float(value) for name, value in packed_cases.evaluate(model).items()}
        reports.append({"train_loss": sum(losses) / len(losses), **metrics})
    return reports


def assert_close(reports: Reports, expected: Reports) -> None:
    assert len(reports) == len(expected)
    for report, wanted in zip(reports, expected, strict=True):
        assert report == pytest.approx(wanted, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("config", [*SGD, *ADAM], ids=str)
def test_training_alone_equals_torch_optim(config: dict[str, Any]) -> None:
    assert_close(alone(config), by_hand(config))


@pytest.mark.parametrize("configs", [SGD, ADAM, [*SGD, *ADAM]], ids=["sgd", "adamw", "both"])
def test_trials_of_a_batch_train_as_if_each_were_alone(worker: Worker, configs: list[dict[str, Any]]) -> None:
    worker.batch_process()
    trials = [worker.trial(config) for config in configs]
    for _ in range(4):
        assert all(trial.step() for trial in trials)
    for trial, config in zip(trials, configs, strict=True):
        assert_close(trial.reports, alone(config))


def test_trials_may_join_late_and_leave_early(worker: Worker) -> None:
    worker.batch_process()
    first, leaves = worker.trial(SGD[0], steps=6), worker.trial(SGD[1], steps=6)
    for _ in range(2):
        first.step()
    leaves.step(stop=True)
    late = worker.trial(SGD[2])
    assert_close(late.finish(), alone(SGD[2]))
    assert_close(first.finish(), alone(SGD[0], 6))
    assert_close(leaves.reports, alone(SGD[1], 1))


def test_trial_that_is_killed_in_the_middle_of_a_step_does_not_disturb_the_others(worker: Worker) -> None:
    worker.batch_process()
    trials = [worker.trial(config) for config in SGD[:2]]
    # the batch process kills the first trial while it draws a batch for the third one, in the middle of a common step
    killer = worker.trial({**SGD[2], "kills_in": [1, 2], "victim": trials[0].pid})
    for trial in [*trials, killer]:
        trial.step()
    rest = [killer.finish(), trials[1].finish()]
    assert len(trials[0].finish()) < 4
    assert_close(rest[0], alone(SGD[2]))
    assert_close(rest[1], alone(SGD[1]))


def test_paused_trial_continues_in_a_batch_from_its_checkpoint(worker: Worker) -> None:
    worker.batch_process()
    for config in (SGD[1], ADAM[1]):
        paused = worker.trial(config)
        paused.step()
        paused.step(stop=True, save=True)
        paused.wait_for_end()
        assert paused.saved is not None
        other = worker.trial({**config, "seed": 7})
        resumed = worker.trial(config, restore=str(paused.saved), first_step=2)
        other.step()
        assert_close(paused.reports + resumed.finish(), alone(config))
        assert_close(other.finish(), alone({**config, "seed": 7}))


def test_checkpoint_of_a_batch_continues_alone_and_has_the_state_of_the_model(worker: Worker) -> None:
    worker.batch_process()
    paused, other = worker.trial(ADAM[0]), worker.trial(ADAM[2])
    other.step()
    paused.step(stop=True, save=True)
    paused.wait_for_end()
    assert paused.saved is not None
    state = torch.load(paused.saved / channel.STATE_FILE, weights_only=True)["parts"]
    assert state["model"].keys() == make(ADAM[0]).state_dict().keys()
    assert state["optimizer"]["class"] == "AdamW"
    resumed = worker.trial(ADAM[0], restore=str(paused.saved), first_step=1, batch_socket=None)
    assert_close(paused.reports + resumed.finish(), alone(ADAM[0]))


def test_models_and_batches_of_other_shapes_train_in_one_batch_process(worker: Worker) -> None:
    worker.batch_process()
    configs = [
        {"lr": 0.01, "seed": 1},
        {"lr": 0.02, "seed": 2, "width": 12},
        {"lr": 0.02, "seed": 3, "width": 12},
        {"lr": 0.02, "seed": 4, "batch": 5},
        {"lr": 0.02, "seed": 5, "batches": 2},
        {"lr": 0.02, "seed": 6, "relu": True},
    ]
    trials = [worker.trial(config) for config in configs]
    for trial, config in zip(trials, configs, strict=True):
        assert_close(trial.finish(), alone(config))


def test_not_a_number_in_one_trial_does_not_reach_the_others(worker: Worker) -> None:
    worker.batch_process()
    broken, whole = worker.trial({**SGD[0], "nan": True}), worker.trial(SGD[1])
    for _ in range(4):
        broken.step()
        whole.step()
    assert all(report["val_loss"] != report["val_loss"] for report in broken.reports)
    assert_close(whole.reports, alone(SGD[1]))


def test_error_of_one_trial_ends_only_that_trial(worker: Worker) -> None:
    worker.batch_process()
    failing, whole = worker.trial({**SGD[0], "raises_in": [1, 2]}), worker.trial(SGD[1])
    for _ in range(4):
        failing.step()
        whole.step()
    assert failing.failure is not None
    assert (failing.failure["error"], failing.failure["message"]) == (
        "LookupError",
        "the data has no such batch",
    )
    assert "in batches" in failing.failure["traceback"]  # the place in user code, from the other process
    assert_close(failing.reports, alone(SGD[0], 1))
    assert_close(whole.reports, alone(SGD[1]))


def wrong_loss(model: Any, batch: Any) -> torch.Tensor:
    """Draw random numbers for each trial, which a batch cannot do."""
    return loss(model, (torch.rand_like(batch[0]), batch[1]))


def test_failed_computation_of_a_batch_fails_its_trials_with_advice(worker: Worker) -> None:
    packed = Packed(make=make, optimizer=optimizer, batches=packed_cases.batches, loss=wrong_loss)
    worker.batch_process(packed)
    for trial in [worker.trial(config, packed) for config in SGD[:2]]:
        assert trial.finish() == []
        assert trial.failure is not None
        assert trial.failure["error"] == "BatchFailed"
        assert "cannot draw random numbers" in trial.failure["message"]


def sized(model: Any) -> dict[str, torch.Tensor]:
    """Report how many trials are computed together."""
    output = model(packed_cases.VALIDATION)
    return {"together": output.mean() * 0 + torch.func.debug_unwrap(output).shape[0]}


made: list[dict[str, Any]] = []  # in the batch process: the configurations of the trials that have joined


def counted_make(config: dict[str, Any]) -> nn.Module:
    made.append(config)
    return make(config)


def batches_until_three_have_joined(config: dict[str, Any], step: int) -> Iterator[Any]:
    yield from packed_cases.batches(config, step)
    while len(made) < 3:
        yield from packed_cases.batches(config, step)


def test_trials_that_have_joined_train_together(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_process, "TOGETHER_S", LIMIT_S)
    packed = Packed(
        make=counted_make,
        optimizer=optimizer,
        batches=batches_until_three_have_joined,
        loss=loss,
        evaluate=sized,
    )
    monkeypatch.setattr(_Pace, "stacks", lambda _: True)
    worker.batch_process(packed)
    trials = [worker.trial(config, packed) for config in SGD]
    with ThreadPoolExecutor() as pool:
        reports = list(pool.map(Trial.finish, trials))
    # Whoever joins first trains its first step without the others. They train their last step without it.
    for of_one in reports:
        assert [report["together"] for report in of_one].count(3) >= 3


def crowded_loss(model: Any, batch: Any) -> torch.Tensor:
    """Fail if the model is stacked with others, as if memory sufficed for one only."""
    stacked = torch.func.debug_unwrap(batch[0])
    if stacked.dim() > batch[0].dim() and len(stacked) > 1:  # the leading dimension is that of the trials
        raise MemoryError
    return loss(model, batch)


def test_trials_train_one_by_one_if_they_cannot_be_computed_together(worker: Worker) -> None:
    packed = Packed(
        make=make,
        optimizer=optimizer,
        batches=packed_cases.batches,
        loss=crowded_loss,
        evaluate=packed_cases.evaluate,
    )
    worker.batch_process(packed)
    trials = [worker.trial(config, packed) for config in SGD]
    for trial, config in zip(trials, SGD, strict=True):
        assert_close(trial.finish(), alone(config))


@pytest.mark.parametrize("saves", [False, True], ids=["from the beginning", "from the last checkpoint"])
def test_trials_continue_alone_if_the_batch_process_dies(worker: Worker, saves: bool) -> None:
    batch_process = worker.batch_process()
    trials = [worker.trial(config, steps=6) for config in SGD[:2]]
    for step in range(3):
        assert all(trial.step(save=saves and step == 1) for trial in trials)
    os.kill(batch_process, signal.SIGKILL)
    for trial, config in zip(trials, SGD, strict=False):
        assert_close(trial.finish(), alone(config, 6))
        assert trial.failure is None


def test_script_trains_the_same_as_a_batch_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: Reports = []

    def report(self: SpotSafe, **metrics: Any) -> None:
        reports.append(metrics)
        REPORT(self, **metrics)

    monkeypatch.setattr(SpotSafe, "report", report)
    train(ADAM[1], steps=2, checkpoint_dir=tmp_path)
    train(ADAM[1], steps=4, checkpoint_dir=tmp_path)
    assert reports == alone(ADAM[1])
    with pytest.raises(ValueError, match="call train"):
        train(ADAM[1])


class Counting(nn.Module):
    """A module that changes a buffer."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self._in_place = in_place
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._in_place:
            self.calls.add_(1)  # type: ignore[operator]
        else:
            self.calls = self.calls + 1
        return self.layer(inputs)  # type: ignore[no-any-return]


def with_model(module: nn.Module, **changed: Any) -> Packed:
    parts: dict[str, Any] = {
        "make": lambda config: module,
        "optimizer": optimizer,
        "batches": packed_cases.batches,
        "loss": loss,
    }
    return Packed(**{**parts, **changed})


REFUSED = [
    (
        with_model(nn.Sequential(nn.Linear(6, 1), nn.BatchNorm1d(1))),
        ValueError,
        r"1 \(BatchNorm1d\).*GroupNorm",
    ),
    (with_model(nn.Sequential(nn.Linear(6, 1), nn.Dropout(0.1))), ValueError, "Dropout.*random numbers"),
    (with_model(nn.ReLU()), ValueError, "no parameters"),
    (with_model(nn.Linear(6, 1).half()), TypeError, "needs float32 or float64"),
    (with_model(None), TypeError, "returned a NoneType; return a torch.nn.Module"),  # type: ignore[arg-type]
    (with_model(Counting(in_place=True)), BatchFailed, "the buffer calls changes"),
    (with_model(Counting(in_place=False)), BatchFailed, "the buffer calls changes"),
    (with_model(nn.Linear(6, 1), optimizer=lambda *_: 0.1), TypeError, "returned a float; return"),
    (with_model(nn.Linear(6, 1), batches=lambda *_: []), ValueError, "has no batch"),
    (with_model(nn.Linear(6, 1), batches=lambda *_: [1]), TypeError, "yielded int"),
    (with_model(nn.Linear(6, 1), loss=lambda *_: 1.0), BatchFailed, "is a float; return a tensor"),
    (with_model(nn.Linear(6, 1), loss=lambda model, batch: model(batch[0])), BatchFailed, r"\(8, 1\)"),
    (
        with_model(nn.Linear(6, 1), loss=lambda *_: torch.ones(())),
        BatchFailed,
        "does not depend on the parameters",
    ),
    (with_model(nn.Linear(6, 1), evaluate=lambda _: torch.ones(())), BatchFailed, "return a dictionary"),
    (
        with_model(nn.Linear(6, 1), optimizer=lambda _, step: [Sgd, AdamW][step](0.1)),
        ValueError,
        "but Sgd before",
    ),
]


@pytest.mark.parametrize(
    ("packed", "error", "message"), REFUSED, ids=[str(number) for number in range(len(REFUSED))]
)
def test_what_a_batch_cannot_train_is_refused(packed: Packed, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        packed(SGD[0], steps=2)


class Scaled(nn.Module):
    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(2, 2), scale


def test_models_with_other_attributes_are_not_stacked() -> None:
    assert structure(Scaled(1.5)) == structure(Scaled(1.5))
    assert structure(Scaled([1, {"a": torch.relu}])) == structure(Scaled([1, {"a": torch.relu}]))
    different = [Scaled(1.5), Scaled(1), Scaled(True), Scaled(object()), Scaled(object()), nn.Linear(2, 2)]
    tied = Scaled(1.5)
    tied.layer.bias = nn.Parameter(torch.zeros(2), requires_grad=False)
    assert len({structure(module) for module in [*different, tied]}) == 7


def test_model_with_shared_and_frozen_parameters_and_constant_buffers_trains(worker: Worker) -> None:
    packed = with_model(nn.Identity(), make=lambda config: Shared(config), evaluate=packed_cases.evaluate)
    worker.batch_process(packed)
    first, other = worker.trial(SGD[0], packed), worker.trial(SGD[1], packed)
    first.step()
    other.step()
    single = worker.trial(SGD[0], packed, batch_socket=None)
    assert_close(first.finish(), single.finish())
    assert len(other.finish()) == 4


class Shared(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(config["seed"])
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.register_buffer("rows", torch.randn(6, 1), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.second(self.first(inputs).tanh())
        return hidden @ self.rows


rates = st.floats(1e-4, 0.05)


@examples(15)
@given(
    configs=st.lists(
        st.fixed_dictionaries(
            {
                "lr": rates,
                "seed": st.integers(0, 9),
                "adam": st.just(False),
                "momentum": st.sampled_from([0.0, 0.9]),
                "batches": st.sampled_from([1, 3]),
            }
        ),
        min_size=2,
        max_size=5,
    )
)
def test_any_members_train_in_one_list_as_if_each_were_alone(configs: list[dict[str, Any]]) -> None:
    trainer = Trainer(train._recipe)
    members = [BatchMember(number, config, make(config)) for number, config in enumerate(configs)]
    for step in range(2):
        for member in members:
            member.begin(train._recipe, step)
        going, metrics = [members], dict[BatchMember, dict[str, float]]()
        while going:
            result = trainer.round(going.pop())
            assert result.errors == {}
            metrics |= result.metrics
            going += result.going
        for member in members:
            assert_close([metrics[member]], [alone(dict(member.config), step + 1)[-1]])


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    started = Driver(tmp_path, "trainables.digits_packed:train")
    yield started
    started.supervisor.close()


def test_packed_trainable_trains_alone_under_a_supervisor_and_resumes(driver: Driver) -> None:
    config = {"learning_rate": 0.01, "width": 32}
    driver.save_at(1, config=config)
    driver.run_to(3, restore=1, config=config)
    assert [report["step"] for report in driver.reports] == [1, 2, 3]
    assert driver.reports[-1]["metrics"]["val_accuracy"] > 0.8


def test_packed_trainable_is_described_with_its_text_and_search_space() -> None:
    described = describe("trainables.digits_packed:train")
    assert described["error"] is None
    assert described["doc"].startswith("Train the network.")
    assert described["search_space"].keys() == digits_packed.SEARCH_SPACE.keys()


def test_exported_model_has_the_metric_that_the_trial_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: Reports = []
    monkeypatch.setattr(
        SpotSafe, "report", lambda self, **metrics: reports.append(metrics) or REPORT(self, **metrics)
    )
    config = {"learning_rate": 0.01, "width": 32}
    digits_packed.train(config, steps=1, checkpoint_dir=tmp_path)
    exported = digits_packed.export(config, read_parts(tmp_path / "step_00000001"))
    assert exported.evaluate(exported.module) == pytest.approx(reports[0]["val_accuracy"])


@pytest.mark.parametrize("stacked_s", [0.1, 0.4])
def test_batches_are_computed_in_the_way_that_was_faster(stacked_s: float) -> None:
    pace = _Pace()
    for number in range(2 * _Pace.TRIES):
        assert pace.stacks() == (number < _Pace.TRIES), "both ways are tried first"
        pace.took(stacked_s if pace.stacks() else 0.2, stacked=pace.stacks())
    assert pace.stacks() == (stacked_s < 0.2)
