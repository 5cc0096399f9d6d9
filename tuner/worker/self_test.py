"""The restore self-test of a trainable: train, save, kill -9, restore, and compare the restored state with the saved state.

The test uses a real supervisor, fork server and children. Checkpoints are stored in a folder of this machine. The child that restores
the checkpoint saves the restored state again before it continues to train (the echo), and the two checkpoints are compared. For a
Ray Tune function, whose state is not visible from outside, the echo shows that the function fetched its checkpoint.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tuner.checkpoints.checkpoints import MANIFEST, CheckpointId
from tuner.domain.ids import SELF_TEST
from tuner.training.channel import STATE_FILE
from tuner.worker.orders import BeginOrder, FailureFields, ReportFields, WorkerState
from tuner.worker.packages import Stored
from tuner.worker.scratch import Scratch
from tuner.worker.supervisor import Supervisor

PROJECT = JOB = "self-test"
EndWord = Literal["pause", "stop"]
# how long to wait until an ordered save is durable; after that, the attempt is paused, which also saves
SETTLES_S = 5.0
USE_SPOT_SAFE = "pass everything that training changes to SpotSafe (model, optimizer, …), or report a checkpoint with every result"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a self-test."""

    passed: bool
    reason: str = ""  #: Why the test did not pass, and how to fix it.
    lasting: bool = True  #: Whether the same code would fail again. False if it may pass another time.


class _Failed(Exception):
    """The self-test did not pass. `verdict` says why."""

    def __init__(self, reason: str, *, lasting: bool = True) -> None:
        super().__init__(reason)
        self.verdict = Verdict(passed=False, reason=reason, lasting=lasting)


@dataclass
class _AttemptResults:
    """The results of one attempt so far."""

    state: WorkerState = "running"
    reports: list[ReportFields] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # steps whose checkpoints are durable
    error: FailureFields | None = None

    def error_text(self) -> str:
        return "Error:" if self.error is None else f"{self.error['type']}: {self.error['message']}"[:1000]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestOrder:
    """What one self-test tests, and with what."""

    entry: str  #: The trainable, `module:attribute`.
    configs: Sequence[Mapping[str, Any]]  #: The configurations, tried in order until one decides the verdict.
    max_step: int | None  #: The last step of the job's trials. None if the job has none.
    limit_s: float  #: How many seconds the test may take.
    #: The numbers of CPUs and GPUs that the test may use, by the names of Ray.
    resources: Mapping[str, float]
    #: What is needed to load the package of the trainable. None without a package.
    package: Mapping[str, str] | None = None
    kind: str | None = None  #: The kind of the trainable.
    processes: int = 1  #: The number of processes of an attempt.
    #: What is needed to fetch the checkpoint of the job's teacher. None without a teacher.
    teacher: Mapping[str, Any] | None = None


def self_test(order: SelfTestOrder, *, owns_process: bool = False) -> Verdict:
    """Run the restore self-test in a supervisor of its own, and return the verdict. This blocks for up to `limit_s` plus a few seconds.

    `owns_process` is that of `Supervisor`: True in a process that does nothing else.
    """
    scratch = Scratch("self-test")
    supervisor = Supervisor(order.entry, package=Stored.parse(order.package), owns_process=owns_process)
    try:
        return RestoreSelfTest(order, supervisor, scratch.path / "storage").verdict()
    finally:
        supervisor.close()
        scratch.close()


class RestoreSelfTest:
    """Runs the restore self-test of one trainable. It needs an idle supervisor and an empty storage folder."""

    def __init__(self, order: SelfTestOrder, supervisor: Supervisor, storage: Path) -> None:
        self._order, self._supervisor, self._storage = order, supervisor, storage
        self._until = time.monotonic() + order.limit_s
        self._attempt = 0

    def verdict(self) -> Verdict:
        """Run the test and return its verdict.

        Try the configurations in order until one passes, one fails in a way that is expected to repeat, or the time is
        over. A configuration whose first step fails does not decide the verdict, unless it is the last one.
        """
        verdict = Verdict(
            passed=False, reason="the sampler has no configuration to test the trainable with", lasting=False
        )
        for config in self._order.configs:
            try:
                self._test(config)
                return Verdict(passed=True)
            except _Failed as failed:
                verdict = failed.verdict
            if verdict.lasting or self._left_s() <= 0:
                break
        return verdict

    def _left_s(self) -> float:
        return self._until - time.monotonic()

    def _test(self, config: Mapping[str, Any]) -> None:
        """Run the test with one configuration. Raise _Failed if it does not pass."""
        saved = CheckpointId(self._train_and_kill(config), self._attempt)
        echo = CheckpointId(saved.step, self._attempt + 1)
        self._resume(config, saved)
        folder = self._storage / PROJECT / JOB / SELF_TEST
        different = _differences(folder / saved.name, folder / echo.name)
        if different:
            raise _Failed(
                f"the restored state differs from the saved one: {', '.join(different)}; each part that is passed to SpotSafe "
                "must restore in load_state_dict everything that its state_dict returned"
            )

    def _train_and_kill(self, config: Mapping[str, Any]) -> int:
        """Train until a checkpoint is durable, then kill the process. Return the step of the checkpoint. Raise _Failed if there is none."""
        self._begin(config, target_step=2, checkpoint_interval_ns=1)
        waits_since: list[float] = []

        def end(run: _AttemptResults) -> EndWord | None:
            if run.steps:
                return "stop"
            if run.state == "waiting":
                waits_since.append(time.monotonic())
                if not any(report["resumable"] for report in run.reports):
                    return "stop"
                if time.monotonic() - waits_since[0] > SETTLES_S:
                    return "pause"
            return None

        run = self._follow(end)
        if run.steps:
            return run.steps[0]
        if run.state == "failed":
            raise _Failed(f"the first step failed: {run.error_text()}", lasting=False)
        self._check_time(run)
        if not run.reports:
            raise _Failed("the trainable ended without a report", lasting=False)
        raise _Failed(f"the trainable cannot be resumed, because it reported no checkpoint; {USE_SPOT_SAFE}")

    def _resume(self, config: Mapping[str, Any], saved: CheckpointId) -> None:
        self._begin(
            config,
            target_step=saved.step + 1,
            restore=saved,
            checkpoint_interval_ns=10**18,
            echo=True,
        )
        # Saves are stored in order, and the save of a pause is the last one. So an echo is durable once the attempt has paused.
        run = self._follow(lambda run: "pause" if run.state == "waiting" else None)
        if run.state == "failed":
            lasting = run.error is None or run.error["kind"] != "storage"
            raise _Failed(
                f"the trainable could not continue from its checkpoint of step {saved.step}: {run.error_text()}",
                lasting=lasting,
            )
        self._check_time(run)
        if saved.step not in run.steps:
            raise _Failed(
                f"the trainable got its checkpoint of step {saved.step}, but started again from scratch; {USE_SPOT_SAFE}, and continue "
                "from tune.get_checkpoint() if it returns a checkpoint"
            )

    def _begin(
        self,
        config: Mapping[str, Any],
        *,
        target_step: int,
        checkpoint_interval_ns: int,
        restore: CheckpointId | None = None,
        echo: bool = False,
    ) -> None:
        self._attempt += 1
        max_step = self._order.max_step
        begin: BeginOrder = {
            "order": "begin",
            "project": PROJECT,
            "job": JOB,
            "trial": SELF_TEST,
            "attempt": self._attempt,
            "entry": self._order.entry,
            "kind": self._order.kind,
            "config": dict(config),
            "target_step": target_step,
            "max_step": None if max_step is None else max(2, max_step),  # the test trains a second step
            "lease_ns": max(1, round(self._left_s() * 1e9)),
            "storage": str(self._storage),
            "restore_step": None if restore is None else restore.step,
            "restore_attempt": None if restore is None else restore.attempt,
            "checkpoint_interval_ns": checkpoint_interval_ns,
            "keep": 100,
            "resources": dict(self._order.resources),
            "processes": self._order.processes,
            "teacher": self._order.teacher,
            "echo": echo,
        }
        self._supervisor.order(begin)

    def _follow(self, end: Callable[[_AttemptResults], EndWord | None]) -> _AttemptResults:
        """Follow the attempt until it ends, and return its results.

        Args:
            end: Called with the results so far. Returns the order that ends the attempt, or None to continue. Not called again after
                it returned an order.
        """
        run, ordered = _AttemptResults(), False
        while run.state in ("running", "waiting"):
            result = self._supervisor.step()
            run.state, run.error = result["state"], result["error"]
            run.reports += result["reports"]
            run.steps += [checkpoint["step"] for checkpoint in result["checkpoints"]]
            order = None if ordered else end(run)
            if order is not None:
                self._supervisor.order({"order": order, "trial": SELF_TEST})
                ordered = True
        return run

    def _check_time(self, run: _AttemptResults) -> None:
        """Raise _Failed if the lease of the attempt ended before the test was done."""
        if run.state == "paused" and run.error:
            raise _Failed(f"the self-test did not finish within {self._order.limit_s:.0f} s", lasting=False)


def _differences(saved: Path, restored: Path) -> list[str]:
    """Return the names of the parts in which two checkpoints differ. Return an empty list if they are equal.

    If both come from `SpotSafe`, compare the parts of its state. Otherwise compare file by file. Of files that PyTorch can read, compare the
    tensors and arrays.
    """
    from tuner.training.comparing import differences, same_tensors  # imports torch

    if (saved / STATE_FILE).is_file() and (restored / STATE_FILE).is_file():
        return differences(saved, restored)
    files = {
        path.relative_to(folder).as_posix()
        for folder in (saved, restored)
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
    return [f"the file {name}" for name in sorted(files) if not same_tensors(saved / name, restored / name)]
