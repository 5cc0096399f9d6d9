"""Drive a worker's supervisor as a job's driver does, with a real fork server and real children, but without a
Ray cluster.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner.domain.checkpointing import SaveTimes
from tuner.driver.messages import WorkerMessage
from tuner.worker.orders import AttemptMessage
from tuner.worker.supervisor import Supervisor

SECOND = 1_000_000_000
LEASE_S = 600
MAX_STEP = 9
NODE = "node-here"  # the machine of the supervisors that tests share
ENDS = {"pause": "paused", "stop": "stopped", "finish": "finished"}


def parsed(message: AttemptMessage) -> WorkerMessage:
    """Return a supervisor's message as the driver reads it from the worker's actor."""
    return WorkerMessage.parse({**message, "node": NODE, "machine": {}, "others": [], "retires": False})


class Driver:
    """A driver that gives orders to a supervisor and collects the results."""

    def __init__(self, storage: Path | str, entry: str, supervisor: Supervisor | None = None) -> None:
        """Use the given supervisor, or create one."""
        self.entry, self.storage = entry, storage
        self.supervisor = supervisor or Supervisor(entry)
        self.reports: list[dict[str, Any]] = []
        self.environment: dict[str, Any] | None = None
        self.attempt = 0

    def begin(
        self,
        *,
        target_step: int | None = 3,
        lease_s: float = LEASE_S,
        restore: int | None = None,
        **more: Any,
    ) -> None:
        self.attempt += 1
        order = {
            "order": "begin",
            "project": "default",
            "job": "job_1",
            "trial": "trial_00000",
            "attempt": self.attempt,
            "entry": self.entry,
            "config": {"x": 2},
            "target_step": target_step,
            "max_step": MAX_STEP,
            "lease_ns": int(lease_s * SECOND),
            "storage": str(self.storage),
            "restore_step": restore,
            "keep": 2,
        }
        self.supervisor.order({**order, **more})

    def order(self, word: str, **more: Any) -> None:
        self.supervisor.order({"order": word, "trial": "trial_00000", "job_best": None, **more})

    def run_to(self, step: int, **more: Any) -> dict[str, Any]:
        """Begin an attempt, and return the result with which it waits at this step."""
        self.begin(target_step=step, **more)
        return self.until_state("waiting")

    def run(self, **more: Any) -> dict[str, Any]:
        """Run an attempt whose function returns its metric to its end, and return its last result."""
        self.begin(target_step=1, **more)
        return self.until_state("ended")

    def end(self, word: str, state: str | None = None, **more: Any) -> dict[str, Any]:
        """Order the attempt to end, and return its last result. `state` is the expected one if the order cannot be carried out."""
        self.order(word, **more)
        return self.until_state(state or ENDS[word])

    def save_at(self, step: int, **more: Any) -> dict[str, Any]:
        """Run an attempt to this step, and pause it with a checkpoint."""
        self.run_to(step, **more)
        paused = self.end("pause")
        assert paused["saved_step"] == step
        return paused

    def promoted_twice(self, steps: int, **more: Any) -> None:
        """Train to the rung at step 1, then to the one at 3, and then to `steps`. Pause at each rung."""
        self.save_at(1, **more)
        self.run_to(3, restore=1, **more)
        assert self.end("pause")["saved_step"] == 3
        self.run_to(steps, restore=3, **more)

    def save_from(self, step: int, **more: Any) -> int:
        """Run an attempt of a program to this step or a few more, and pause it with a checkpoint. Return the saved step.

        A step cannot be saved if the program has begun to write the next one before it was stopped, as on a busy machine.
        """
        self.run_to(step, **more)
        while not self.reports[-1]["resumable"]:
            assert self.reports[-1]["step"] < MAX_STEP, self.reports
            self.order("continue", target_step=self.reports[-1]["step"] + 1, lease_ns=LEASE_S * SECOND)
            self.until_state("waiting")
        saved: int = self.end("pause")["saved_step"]
        assert saved == self.reports[-1]["step"]
        return saved

    def until_state(self, *states: str) -> dict[str, Any]:
        """Step until the worker is in one of the states, and return that result."""
        return self._step_until(lambda result: result["state"] in states, *states)

    def until(self, what: Callable[[dict[str, Any]], object]) -> None:
        """Step until the predicate is true for a result of the running attempt."""
        self._step_until(what)

    def _step_until(self, what: Callable[[dict[str, Any]], object], *states: str) -> dict[str, Any]:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            result = self.supervisor.step()
            self.reports += result["reports"]
            self.environment = result["environment"] or self.environment
            assert result["state"] in ("running", "waiting", *states), result
            if what(result):
                return result
        raise AssertionError(f"not {states} within four minutes")

    def reported(self, step: int) -> None:
        self.until(lambda _: self.reports and self.reports[-1]["step"] >= step)

    @property
    def step_ns(self) -> list[int]:
        """Return the durations of the last steps in nanoseconds, as the supervisor measured them."""
        assert self.supervisor.attempt is not None
        return list(self.supervisor.attempt.times.step_ns)

    def takes(self, step_s: float) -> None:
        """Make the supervisor believe that a step takes `step_s` seconds."""
        assert self.supervisor.attempt is not None
        with self.supervisor._changed:
            self.supervisor.attempt.times.step_ns.append(round(step_s * SECOND))

    def saves_take(self, durable_s: float) -> None:
        """Make the supervisor believe that a checkpoint is durable `durable_s` seconds after its save was ordered."""
        assert self.supervisor.attempt is not None
        with self.supervisor._changed:
            self.supervisor.attempt.times.saves.saving = SaveTimes(
                stall_ns=SECOND // 10, durable_ns=round(durable_s * SECOND)
            )

    def lease_ends_in(self, left_s: float) -> int:
        """Shorten the lease so that `left_s` seconds are left. Return the whole lease in nanoseconds."""
        attempt = self.supervisor.attempt
        assert attempt is not None
        with self.supervisor._changed:
            attempt.lease_ns = attempt.watch.total_ns() + round(left_s * SECOND)
        return attempt.lease_ns

    def let_go(self) -> None:
        """Stop the attempt if one is still running."""
        if self.supervisor._attempt is not None:
            self.order("stop")
            while self.supervisor.step()["state"] in ("running", "waiting"):
                pass
