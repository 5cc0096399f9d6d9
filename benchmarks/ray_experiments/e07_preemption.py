"""E7: the node of a trial dies: announced, silently, or as a black hole. What does Tune learn, and when?

The second node is a `ray start` on the same machine; the head has no CPUs, so the trial runs there.
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private.state import state as cluster_state
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from benchmarks.ray_experiments.common import Plain, environment, private_ray, say, tuner, wait_for
from tuner.cluster.launch import free_ports

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
QUICK_CHECKS = {
    "initial_delay_ms": "1000",
    "period_ms": "1000",
    "timeout_ms": "5000",
    "failure_threshold": "4",
}
DEFAULT_CHECKS = {
    "initial_delay_ms": "5000",
    "period_ms": "3000",
    "timeout_ms": "10000",
    "failure_threshold": "5",
}


class Worker(Plain):
    def step(self) -> dict[str, Any]:
        time.sleep(0.2)
        return {"node": ray.get_runtime_context().get_node_id()}


class Node:
    """A node of the cluster: a child process and its descendants."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def signal(self, number: int) -> None:
        root = psutil.Process(self._process.pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error):
                process.send_signal(number)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)


@contextmanager
def second_node(path: Path) -> Iterator[Node]:
    agent, metrics, runtime_env = free_ports(3)
    ports = {"dashboard-agent-listen-port": agent, "metrics-export-port": metrics, "min-worker-port": 0}
    ports |= {"runtime-env-agent-port": runtime_env, "max-worker-port": 0, "node-manager-port": 0}
    address = ray.get_runtime_context().gcs_address
    flags = [f"--address={address}", "--block", "--num-cpus=1"]
    with (path / "node.log").open("wb") as log:
        command = [*RAY, "start", *flags, *(f"--{name}={port}" for name, port in ports.items())]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    node = Node(process)
    try:
        if wait_for(lambda: ray.cluster_resources().get("CPU"), 30.0) is None:
            raise RuntimeError((path / "node.log").read_text()[-2000:])
        yield node
    finally:
        with suppress(psutil.Error):
            node.signal(signal.SIGKILL)
        process.wait()


class Listener(FIFOScheduler):
    """Call `act` in a thread at the fifth result, and record when and how Tune learns of the death."""

    def __init__(self, act: Callable[["Listener", str], None]) -> None:
        super().__init__()
        self._act, self.acted_at, self._died, self._again = act, 0.0, False, False

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing to pickle. Tuner() pickles its scheduler, which would fail, and never reads the result."""
        return {}

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if result["training_iteration"] == 5:
            threading.Thread(target=self._act, args=(self, result["node"]), daemon=True).start()
        return self.CONTINUE

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if self._died:
            self._again = True
            say("  Tune will run the same trial again in spite of max_failures=0")

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        if self._again:
            for trial in list(tune_controller.get_live_trials()):
                tune_controller.stop_trial(trial)
        return super().choose_trial_to_run(tune_controller)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._died = True
        error = ray.cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
        preempted, failures = getattr(error, "preempted", None), trial.run_metadata.num_failures
        say(f"  Tune learns of it after {time.monotonic() - self.acted_at:.1f} s: {type(error).__name__},")
        say(f"  preempted={preempted}, num_failures={failures}")

    def act(self, action: Callable[[], None]) -> None:
        self.acted_at = time.monotonic()
        action()


def drain(node_id: str) -> None:
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "notice"]
    target = ["--address", ray.get_runtime_context().gcs_address, "--node-id", node_id]
    subprocess.run(
        [*RAY, "drain-node", *target, *reason, "--deadline-remaining-seconds", "30"],
        check=True,
        capture_output=True,
    )
    noticed_after_s = wait_for(lambda: node_id in cluster_state.get_draining_nodes(), 10.0)
    say(
        f"  the driver sees the node draining {noticed_after_s:.2f} s after `ray drain-node` returned; the trial continues"
    )
    time.sleep(1.0)


def case(title: str, how: str, checks: dict[str, str]) -> None:
    environment(**{f"RAY_health_check_{name}": value for name, value in checks.items()})
    say(title)
    with private_ray(cpus=0) as path, second_node(path) as node:
        actions = {
            "drained": lambda: node.signal(signal.SIGKILL),
            "killed": lambda: node.signal(signal.SIGKILL),
            "stopped": lambda: node.signal(signal.SIGSTOP),
            "terminated": node.terminate,
        }

        def act(listener: Listener, node_id: str) -> None:
            if how == "drained":
                drain(node_id)
            listener.act(actions[how])
            if how == "terminated":
                noticed_after_s = wait_for(lambda: node_id in cluster_state.get_draining_nodes(), 5.0)
                say(
                    f"  the driver sees the node draining: {'never' if noticed_after_s is None else f'after {noticed_after_s:.1f} s'}"
                )

        began = time.monotonic()
        tuner(Worker, path, scheduler=Listener(act)).fit()
        say(f"  fit() returned {time.monotonic() - began:.1f} s after its start")


def main() -> None:
    environment(RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE="0")
    case("drained with reason PREEMPTION, then killed", "drained", DEFAULT_CHECKS)
    environment(RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE="1")
    case("the same with RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE=1", "drained", DEFAULT_CHECKS)
    case("killed silently", "killed", DEFAULT_CHECKS)
    case("SIGTERM to its `ray start --block`", "terminated", DEFAULT_CHECKS)
    case("black hole (SIGSTOP), quick health checks", "stopped", QUICK_CHECKS)
    case("black hole (SIGSTOP), default health checks", "stopped", DEFAULT_CHECKS)


if __name__ == "__main__":
    main()
