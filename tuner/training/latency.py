"""Measure how long a model takes for one prediction."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from tuner.training.variants import BatchLatency

MEASURED_S = 0.25  # how long each batch size is measured
FEWEST, MOST = 5, 300  # calls in one measurement


def latency_ms(module: nn.Module, *inputs: torch.Tensor, seconds: float = MEASURED_S) -> float:
    """Return the median time in milliseconds that the module takes for one prediction: a call with one row of the inputs.

    The module is called in evaluation mode and without gradients, with the threads and on the device that it trains with. The mode of
    each of its layers is restored. Measure once, before the loop: the time does not depend on the weights.

    Args:
        module: The module to measure.
        inputs: The inputs of one call. The first axis of each is the batch.
        seconds: How long to measure, in seconds. The time is billed like the rest of the trial.
    """
    example = rows(inputs, 1)
    devices = {tensor.device for tensor in example if tensor.device.type == "cuda"}

    def call() -> None:
        module(*example)
        for device in devices:
            torch.cuda.synchronize(device)  # calls on a GPU return before they are computed

    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        with torch.inference_mode():
            return measure_calls(call, 1, seconds, most=1_000_000).p50_ms
    finally:
        # Layers that do not train, such as frozen ones, may differ from the module.
        for layer, is_training in modes:
            layer.training = is_training


def measure_calls(call: Callable[[], object], batch: int, seconds: float, most: int = MOST) -> BatchLatency:
    """Call repeatedly for about `seconds`, at most `most` times, and return the latency and the throughput.

    At least `FEWEST` calls are made. `batch` is the number of examples of one call.
    """
    for _ in range(2):  # the first calls allocate memory
        call()
    times: list[int] = []
    until = time.monotonic_ns() + round(seconds * 1e9)
    while len(times) < FEWEST or (time.monotonic_ns() < until and len(times) < most):
        began = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - began)
    ordered = sorted(times)
    p50, p99 = (ordered[min(len(ordered) - 1, len(ordered) * share // 100)] / 1e6 for share in (50, 99))
    return BatchLatency(batch, p50, p99, batch * len(times) * 1e9 / sum(times))


def rows(inputs: Sequence[torch.Tensor], batch: int) -> tuple[torch.Tensor, ...]:
    """Return inputs with `batch` rows, by repeating the rows of these inputs."""
    return tuple(tensor[torch.arange(batch, device=tensor.device) % len(tensor)] for tensor in inputs)
