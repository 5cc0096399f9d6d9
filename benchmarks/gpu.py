"""`python -m benchmarks.gpu`: the costs and savings of tuner's helpers for training on a GPU, compared with plain PyTorch.

Also checks that a worker frees its GPU when it ends. Needs an NVIDIA GPU and `pip install tuner[gpu]`; takes a few minutes. Peers are
measured in the same run.

To print single tables: `python -m benchmarks.gpu precision checkpoint`.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from tests.worker.driving import Driver
from tuner.training import SpotSafe, accumulate, autocast, grad_scaler, measured
from tuner.training.checkpoint import Copies
from tuner.worker.metering import Gpus

NO_GPU = "PyTorch cannot use a GPU on this machine: run this on a machine with a GPU, and with a PyTorch built for CUDA"
MIB = 1 << 20


@dataclass(frozen=True)
class Size:
    """The size of the model and its batches, and the number of timed steps."""

    width: int = 2048
    depth: int = 12
    batch: int = 4096
    steps: int = 30
    state_mb: int = 1000


SMALL = Size(width=16, depth=2, batch=8, steps=2, state_mb=1)


def network(size: Size, device: str) -> nn.Sequential:
    """Build `depth` blocks shaped like the feed-forward part of a transformer."""
    torch.manual_seed(0)
    width, layers = size.width, list[nn.Module]()
    for _ in range(size.depth):
        layers += [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
    return nn.Sequential(*layers, nn.Dropout(0.1)).to(device)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(device: str, size: Size, step: Callable[[], object]) -> tuple[float, float]:
    """Return the median milliseconds of `size.steps` steps after three warm-up steps, and the peak memory in MiB."""
    for _ in range(3):
        step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step_ms = []
    for _ in range(size.steps):
        wait(device)
        began = time.perf_counter()
        step()
        wait(device)
        step_ms.append((time.perf_counter() - began) * 1e3)
    return median(step_ms), torch.cuda.max_memory_allocated() / MIB if device == "cuda" else float("nan")


# Precision, accumulation, activations


def plain(precision: str, device: str, size: Size) -> Callable[[], object]:
    """Return a training step as PyTorch's own documentation writes it."""
    model, dtype = network(size, device), {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
    x = torch.randn(size.batch, size.width, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()

    return step


def ours(
    precision: str, device: str, size: Size, parts: int = 1, again: bool = False
) -> Callable[[], object]:
    """Return the same training step with our helpers.

    If `again`, activations are computed again for the gradients, except one in every two blocks.
    """
    model, scaler = network(size, device), grad_scaler(precision, device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x = torch.randn(size.batch, size.width, device=device)

    def loss_of(part: torch.Tensor) -> torch.Tensor:
        with autocast(precision):
            out = (
                checkpoint_sequential(model, size.depth, part, use_reentrant=False) if again else model(part)
            )
            return out.float().square().mean()  # type: ignore[no-any-return]

    return lambda: accumulate(x, parts, loss_of, optimizer=optimizer, scaler=scaler)


def precision(device: str, size: Size) -> None:
    print("| | ours, ms a step | MiB | plain PyTorch, ms | MiB |\n| --- | --- | --- | --- | --- |")
    for name in ("fp32", "fp32 with TF32", "bf16", "fp16"):
        torch.set_float32_matmul_precision("high" if "TF32" in name else "highest")
        cells = [
            f"{ms:.1f} | {mib:.0f}"
            for make in (ours, plain)
            for ms, mib in [timed(device, size, make(name[:4], device, size))]
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def memory(device: str, size: Size) -> None:
    """Print time and memory in bf16 with micro-batches and with recomputed activations."""
    print("| bf16 | ms a step | MiB |\n| --- | --- | --- |")
    for parts, again in ((1, False), (2, False), (4, False), (8, False), (1, True), (4, True)):
        ms, mib = timed(device, size, ours("bf16", device, size, parts, again))
        print(
            f"| {parts} micro-batches{', activations computed again' if again else ''} | {ms:.1f} | {mib:.0f} |"
        )


# Loading


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows that each take a moment of CPU time."""

    def __init__(self, size: Size) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size.batch * self._size.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self._size.width,), float(index)).sin()


def loading(device: str, size: Size) -> None:
    """Run one step of the network per batch of a loader, and print which share of the time it waited for data."""
    step, workers = ours("bf16", device, size), max(2, (os.cpu_count() or 2) // 2)
    print("| loader | ms a batch | of which waiting |\n| --- | --- | --- |")
    for count, pinned in ((0, False), (workers, False), (workers, True)):
        loader = torch.utils.data.DataLoader(
            Rows(size), size.batch, num_workers=count, pin_memory=pinned and device == "cuda"
        )
        measured.forget()
        began = time.perf_counter()
        with SpotSafe(steps=1) as run:
            for batch in run.data(loader):
                batch.to(device, non_blocking=pinned)
                step()
        wait(device)
        took = time.perf_counter() - began
        waited_s = measured.measurements()["data_wait_ns"] / 1e9
        print(
            f"| {count} workers{', pinned' * pinned} | {took / len(loader) * 1e3:.1f} | {waited_s / took:.0%} |"
        )
    measured.forget()


# Checkpoints


class State(nn.Module):
    """A model with 25 tensors of `megabytes` MB in all."""

    def __init__(self, megabytes: int, device: str) -> None:
        super().__init__()
        count = megabytes * 10_000
        self.pieces = nn.ParameterList([nn.Parameter(torch.randn(count, device=device)) for _ in range(25)])


def checkpoint(device: str, size: Size) -> None:
    state = State(size.state_mb, device)
    print(f"| a save of {size.state_mb} MB | ms |\n| --- | --- |")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        waits = []
        with SpotSafe(steps=6, checkpoint_dir=Path(folder) / "ours", state=state) as run:
            for _ in run.steps():
                wait(device)
                began = time.perf_counter()
                run.report(loss=0.0)
                waits.append((time.perf_counter() - began) * 1e3)
                time.sleep(size.state_mb / 250)  # the write finishes, as in a real training
        print(f"| training waits: the first, median of others | {waits[0]:.0f}, {median(waits[1:]):.0f} |")
        began = time.perf_counter()
        with (Path(folder) / "plain.pt").open("wb") as file:
            torch.save(state.state_dict(), file)
            os.fsync(file.fileno())
        print(f"| `torch.save` and `fsync` in the loop | {(time.perf_counter() - began) * 1e3:.0f} |")
    copies, pieces = Copies(), [piece.detach() for piece in state.pieces]
    for _ in range(3):
        copies.begin()
        began = time.perf_counter()
        for piece in pieces:
            copies.copy(piece)
        took = (time.perf_counter() - began) * 1e3
    print(f"| the copy alone, into memory that was used before | {took:.0f} |")
    if device == "cuda":
        print(f"| the same into page-locked memory, which we do not use | {into_pinned(pieces):.0f} |")


def into_pinned(pieces: list[torch.Tensor]) -> float:
    targets = [torch.empty(piece.shape, dtype=piece.dtype, pin_memory=True) for piece in pieces]
    for _ in range(3):
        began = time.perf_counter()
        for target, piece in zip(targets, pieces, strict=True):
            target.copy_(piece, non_blocking=True)
        wait("cuda")
        took = (time.perf_counter() - began) * 1e3
    return took


def losses(device: str, size: Size, folder: Path | None, stop: int, total: int) -> list[float]:
    """Train up to step `stop` with dropout in fp16 with a scaler, and return the losses. Resume from the checkpoint in `folder`."""
    model, scaler, step_losses = network(size, device), grad_scaler("fp16", device), []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x = torch.randn(size.batch, size.width, generator=torch.Generator().manual_seed(1)).to(device)

    def loss_of(part: torch.Tensor) -> torch.Tensor:
        with autocast("fp16"):
            return model(part).float().square().mean()  # type: ignore[no-any-return]

    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    with SpotSafe(steps=total, checkpoint_dir=folder, **parts) as run:  # type: ignore[arg-type]
        for step in run.steps():
            if step == stop:
                break
            step_losses.append(accumulate(x, 2, loss_of, optimizer=optimizer, scaler=scaler))
            run.report(loss=step_losses[-1])
    return step_losses


def restore(device: str, size: Size) -> None:
    """Compare ten steps in one run with the same run again, and with two halves that have a checkpoint between them.

    The model is narrow, because each of the steps saves a checkpoint.
    """
    size = replace(size, width=min(size.width, 512))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        whole, again = (losses(device, size, None, 10, 10) for _ in range(2))
        halves = [loss for stop in (5, 10) for loss in losses(device, size, Path(name), stop, 10)]
    print(
        f"the same run twice differs by {apart(whole, again):.1e}, with a restore by {apart(whole, halves):.1e} (relative)"
    )


def apart(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) / max(abs(a), 1e-12) for a, b in zip(first, second, strict=True))


# A worker


def train(config: dict[str, Any]) -> None:
    """Allocate `mib` MiB on the GPU, and report which GPUs the child sees."""
    taken = torch.empty(config["mib"] * MIB, dtype=torch.uint8, device="cuda")
    with SpotSafe() as run:
        for _ in run.steps():
            until = time.monotonic() + config["step_s"]
            while time.monotonic() < until:
                taken.add_(1)
            torch.cuda.synchronize()
            run.report(gpus=torch.cuda.device_count(), name=torch.cuda.get_device_name(), score=0.0)


def worker(device: str, size: Size) -> None:
    """Run a trial on a real supervisor, then one that takes too much memory, then another; print when the memory is freed."""
    gpus = Gpus()
    before = gpus.sample()
    if before is None:
        sys.exit("NVML did not answer: pip install tuner[gpu]")
    print(f"idle, by NVML: {before}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        driver = Driver(folder, "benchmarks.gpu:train")
        many = before.facts["gpu_memory_bytes"]
        assert isinstance(many, int)
        for mib in (8192, 2 * many // MIB, 8192):
            config = {"mib": mib, "step_s": 2.0}
            driver.begin(target_step=2, lease_s=120, config=config, resources={"CPU": 1, "GPU": 1})
            result = driver.until_state("waiting", "failed")
            if result["state"] == "failed":
                print(f"{mib} MiB: {result['error']['type']}, {result['error']['message'][:300]}")
                continue
            print(f"{mib} MiB: {driver.reports[-1]['metrics']}, usage {result['usage']}, now {gpus.sample()}")
            driver.order("stop")
            began = time.perf_counter()
            driver.until_state("stopped")
            stopped_after_s, freed = time.perf_counter() - began, freed_after(gpus, before.used_bytes, began)
            print(f"  killed: reported after {stopped_after_s:.2f} s, its memory is free after {freed:.2f} s")
        driver.supervisor.close()


def multiply(config: dict[str, Any]) -> None:
    """Multiply matrices for two steps of `step_s` seconds, and report the products per second of each step."""
    matrix = torch.randn(config["width"], config["width"], device="cuda", dtype=torch.bfloat16)
    with SpotSafe() as run:
        for _ in run.steps():
            began, count = time.monotonic(), 0
            while time.monotonic() < began + config["step_s"]:
                for _ in range(10):
                    matrix @ matrix
                torch.cuda.synchronize()
                count += 10
            run.report(rate=count / (time.monotonic() - began), score=0.0)


def share(device: str, size: Size) -> None:
    """Run one trial on half of a GPU, then two at the same time, each with a supervisor of its own."""
    print("| products a second | width 256 | width 4096 |\n| --- | --- | --- |")
    for trials in (1, 2):
        rates = [multiplied(trials, width) for width in (256, 4096)]
        print(
            f"| {trials} at a time | "
            + " | ".join(", ".join(f"{r:.0f}" for r in row) for row in rates)
            + " |"
        )


def multiplied(trials: int, width: int) -> list[float]:
    """Return the products per second of the last step of each of the trials, which run at the same time."""
    with ExitStack() as stack:
        drivers = []
        for _ in range(trials):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            drivers.append(Driver(folder, "benchmarks.gpu:multiply"))
            stack.callback(drivers[-1].supervisor.close)
        for driver in drivers:
            config = {"width": width, "step_s": 3.0}
            driver.begin(target_step=2, lease_s=120, config=config, resources={"CPU": 1, "GPU": 0.5})
        for driver in drivers:
            driver.until_state("waiting", "failed")
        return [driver.reports[-1]["metrics"]["rate"] for driver in drivers]


def freed_after(gpus: Gpus, least: int, began: float) -> float:
    """Return the seconds until at most 64 MiB more than `least` are in use, or until a minute has passed."""
    while (sample := gpus.sample()) is None or sample.used_bytes > least + 64 * MIB:
        if time.perf_counter() - began > 60:
            break
        time.sleep(0.01)
    return time.perf_counter() - began


TABLES: dict[str, Callable[[str, Size], None]] = {
    "worker": worker,  # first, before this process itself takes GPU memory
    "share": share,
    "precision": precision,
    "memory": memory,
    "loading": loading,
    "checkpoint": checkpoint,
    "restore": restore,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="What training on a GPU costs and saves.")
    parser.add_argument("table", nargs="*", help=", ".join(TABLES))
    asked = parser.parse_args().table or list(TABLES)
    if unknown := sorted(set(asked) - set(TABLES)):
        parser.error(f"unknown table {', '.join(unknown)}; the tables are {', '.join(TABLES)}")
    if not torch.cuda.is_available():
        sys.exit(NO_GPU)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {os.cpu_count()} processors")
    for name in (table for table in TABLES if table in asked):
        print(f"\n## {name}\n")
        TABLES[name]("cuda", Size())


if __name__ == "__main__":
    main()
