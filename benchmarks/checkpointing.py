"""`python -m benchmarks.checkpointing`: how long training waits for a save, and which share of the time this is at the interval `auto`.

A real worker with its child trains a little and saves as often as it can. The same run measures two peers, in a process of their own:
`torch.save` with `fsync`, for which training waits, and `torch.distributed.checkpoint.async_save`, which copies the state before it writes,
as tuner does. A wait is measured in the training loop: from the end of a step to the beginning of the next step, including the report. The
output also shows by how much a write slows down the steps that run at the same time.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.worker.driving import Driver
from tuner.domain.checkpointing import Hazard, InterruptionRisk, SaveTimes, steps_between
from tuner.domain.time import HOUR_NS, NS
from tuner.driver.placement import NOTICE_NS
from tuner.worker.saves import LEAST_NS

STATE_MB = 100
SAVES = 20
STEP_S = 0.1
PIECES = {"in 25 tensors": 25, "in one tensor": 1}


class State(nn.Module):
    """A model with parameters of the given size in MB (10^6 bytes), and CPU work that changes them."""

    def __init__(self, megabytes: int, pieces: int) -> None:
        super().__init__()
        size = megabytes * 250_000 // pieces
        self.pieces = nn.ParameterList([nn.Parameter(torch.randn(size)) for _ in range(pieces)])
        self.square = torch.randn(256, 256)

    def work(self, seconds: float) -> int:
        """Work for `seconds`, and return the number of operations done."""
        until, done = time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            self.square, done = (self.square @ self.square).tanh(), done + 1
        with torch.no_grad():
            self.pieces[0][:10] += 1
        return done


def train(config: dict[str, Any]) -> None:
    """Report for each step how long it took and how long training waited after the step before it, in ms."""
    from tuner.training import SpotSafe

    state, waited = State(config["megabytes"], config["pieces"]), 0.0
    with SpotSafe(state=state) as run:
        for _ in run.steps():
            began = time.perf_counter()
            done = state.work(config["step_s"])
            ended = time.perf_counter()
            run.report(step_ms=(ended - began) * 1e3, waited_ms=waited, done=done)
            waited = (time.perf_counter() - ended) * 1e3


# Ours


@dataclass
class Waits:
    """Waits of the loop in milliseconds, at saves and elsewhere.

    `durable_s` is the seconds until each save was durable. `next_to_save` is the work done in steps next to a save, as a fraction of the
    work done in other steps.
    """

    saves: list[float]
    others: list[float]
    durable_s: list[float]
    next_to_save: float


def ours(folder: Path, megabytes: int, pieces: int) -> Waits:
    driver = Driver(folder / "storage", "benchmarks.checkpointing:train")
    config = {"megabytes": megabytes, "pieces": pieces, "step_s": STEP_S}
    saved: dict[int, float] = {}
    try:
        driver.begin(target_step=None, max_step=10**6, lease_s=3600, checkpoint_interval_ns=1, config=config)
        while len(saved) < SAVES:
            result = driver.supervisor.step()
            driver.reports += result["reports"]
            saved |= {checkpoint["step"]: checkpoint["seconds"] for checkpoint in result["checkpoints"]}
        driver.order("stop")
        driver.until_state("stopped")
    finally:
        driver.supervisor.close()
    metrics_by_step = {report["step"]: report["metrics"] for report in driver.reports}
    waits = {step - 1: metrics["waited_ms"] for step, metrics in metrics_by_step.items()}
    at_saves = [waits[step] for step in saved if step in waits]
    others = [ms for step, ms in waits.items() if step not in saved and step > 1]
    next_to_save = [metrics_by_step[step + 1]["done"] for step in saved if step + 1 in metrics_by_step]
    elsewhere = [
        metrics_by_step[step]["done"] for step in metrics_by_step if step - 1 not in saved and step > 1
    ]
    share = statistics.mean(next_to_save) / statistics.mean(elsewhere)
    return Waits(at_saves, others, list(saved.values()), share)


def share_in_a_storm(folder: Path, seconds: float) -> tuple[float, int, int]:
    """Return the share of time in which training waited for saves, if workers last two minutes on average."""
    driver = Driver(folder / "storm", "benchmarks.checkpointing:train")
    config = {"megabytes": STATE_MB, "pieces": 25, "step_s": STEP_S}
    saves = 0
    try:
        storm = InterruptionRisk(preemption=Hazard(120 * NS))
        driver.begin(target_step=None, max_step=10**6, lease_s=3600, exposure=storm, config=config)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            result = driver.supervisor.step()
            driver.reports += result["reports"]
            saves += len(result["checkpoints"])
        driver.order("stop")
        meter = driver.until_state("stopped")["meter"]
    finally:
        driver.supervisor.close()
    waited = meter.get("checkpoint", 0)
    return waited / (meter["train"] + waited), saves, len(driver.reports)


# Peers


def saved_in_place(state: nn.Module, folder: Path) -> None:
    with (folder / "state.pt").open("wb") as file:
        torch.save(state.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())


def saved_by_distributed_checkpoint() -> Callable[[nn.Module, Path], None]:
    """Return a function that saves a state with `async_save`.

    It waits for the previous save, as it must, and copies the state. Another thread writes.
    """
    from torch.distributed import checkpoint, init_process_group

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    init_process_group("gloo", rank=0, world_size=1)
    under_way: list[Any] = []

    def save(state: nn.Module, folder: Path) -> None:
        if under_way:
            under_way.pop().result()
        shutil.rmtree(folder / "dcp", ignore_errors=True)
        under_way.append(checkpoint.async_save(state.state_dict(), checkpoint_id=str(folder / "dcp")))

    return save


PEERS: dict[str, Callable[[], Callable[[nn.Module, Path], None]]] = {
    "torch.save and fsync": lambda: saved_in_place,
    "torch.distributed.checkpoint.async_save": saved_by_distributed_checkpoint,
}


def peer(name: str, megabytes: int, pieces: int) -> Iterator[float]:
    """Yield the milliseconds that a loop waits for each save, with as many steps between saves as in our run."""
    state, save = State(megabytes, pieces), PEERS[name]()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for _ in range(SAVES):
            for _ in range(5):
                state.work(STEP_S)
            began = time.perf_counter()
            save(state, Path(folder))
            yield (time.perf_counter() - began) * 1e3


def run_peer(name: str, pieces: int) -> list[float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.checkpointing", name, str(pieces)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(ms) for ms in json.loads(done.stdout.splitlines()[-1])]


# Together


def line(name: str, waits: list[float]) -> str:
    rest = sorted(waits[1:])
    return (
        f"| {name} | {waits[0]:.0f} | {statistics.median(rest):.0f} | {rest[round(0.9 * (len(rest) - 1))]:.0f} "
        f"| {rest[-1]:.0f} |"
    )


def main() -> None:
    print(
        f"| {STATE_MB} MB, ms of waiting | first | median | 90 % | longest |\n| --- | --- | --- | --- | --- |"
    )
    summary_lines = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for words, pieces in PIECES.items():
            our_waits = ours(Path(folder) / str(pieces), STATE_MB, pieces)
            print(line(f"ours, {words}", our_waits.saves))
            print(line("a report without a save", our_waits.others))
            for name in PEERS:
                waits = run_peer(name, pieces)
                print(line(f"{name}, {words}", waits))
                summary_lines.append(
                    f"{name}, {words}: {median(waits) / median(our_waits.saves):.1f} x our wait"
                )
            summary_lines.append(
                f"durable, {words}: median {statistics.median(our_waits.durable_s):.2f} s, longest {max(our_waits.durable_s):.2f} s; "
                f"work done in the step next to a save: {our_waits.next_to_save:.0%} of that of others"
            )
        print("\n" + "\n".join(summary_lines))
        stall_ms, durable_s = median(our_waits.saves), max(our_waits.durable_s)
        print(
            f"\nAt the interval `auto`, with a stall of {stall_ms:.0f} ms, durable after {durable_s:.1f} s:"
        )
        for step_s in (1, 10, 60):
            print(f"  steps of {step_s} s: {shares(step_s, stall_ms, durable_s)}")
        share, saves, steps = share_in_a_storm(Path(folder), 30)
        print(
            f"measured, steps of {STEP_S} s, workers that last for two minutes: {saves} saves in {steps} steps, "
            f"{share:.2%} of the time"
        )


def median(waits: list[float]) -> float:
    """Return the median without the first wait, which includes the allocation of memory."""
    return statistics.median(waits[1:])


def shares(step_s: int, stall_ms: float, durable_s: float) -> str:
    markets = {
        "machines that last an hour": InterruptionRisk(preemption=Hazard(HOUR_NS)),
        "spot": InterruptionRisk(preemption=Hazard.of_spot(), notice_ns=NOTICE_NS),
        "on demand": InterruptionRisk(),
    }
    saving = SaveTimes(max(LEAST_NS, round(stall_ms * 1e6)), round(durable_s * 1e9))
    market_shares = []
    for name, exposure in markets.items():
        steps = steps_between(step_ns=step_s * NS, saving=saving, risk=exposure)
        market_shares.append(f"{name}: every {steps * step_s} s, {stall_ms / 1e3 / (steps * step_s):.3%}")
    return "; ".join(market_shares)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(list(peer(sys.argv[1], STATE_MB, int(sys.argv[2])))))
    else:
        main()
