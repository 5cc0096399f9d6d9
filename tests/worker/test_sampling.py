"""Test measuring what an attempt uses of its machine from outside its process, with real children and a fake
GPU module.
"""

import json
import os
import subprocess
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.driver.looping import Job
from tests.strategies import examples
from tests.worker.driving import parsed
from tuner.domain.cost import Meter
from tuner.domain.time import NS
from tuner.domain.usage import COUNTS, MAX_FACTS, Usage
from tuner.driver.messages import WorkerMessage
from tuner.worker import process_tree, sampling
from tuner.worker.metering import Gpus, UsageMeter
from tuner.worker.process_tree import ResourceUse


def used(driver: Any, *, target_step: int = 2, **config: Any) -> Usage:
    driver.begin(target_step=target_step, config=config)
    usage = parsed(driver.until_state("waiting")).usage
    driver.end("stop")
    assert usage is not None
    return usage


@pytest.mark.parametrize("apart", [False, True], ids=["in its process", "in one of its children"])
def test_computing_uses_more_cpu_time_than_waiting(
    drive: Any, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise a slow first measurement, which is that of the shared memory of two processes, would leave no time for a second one.
    monkeypatch.setattr(sampling, "LOOK_PART", 0)
    driver = drive("burns_or_waits")
    waits, burns = (used(driver, target_step=4, burns=burns, apart=apart) for burns in (False, True))
    assert waits.cpu_ns is not None
    assert burns.cpu_ns is not None
    assert burns.cpu_ns > 2 * waits.cpu_ns
    assert burns.memory_peak_bytes is not None
    assert burns.memory_peak_bytes > 1 << 20
    assert burns.gpu_samples is None
    assert burns.data_wait_ns is None


def test_data_wait_is_measured_separately_from_computation(drive: Any) -> None:
    driver = drive("waits_for_data")
    little, much = (used(driver, wait_s=wait_s) for wait_s in (0.1, 0.3))
    for usage, wait_s in ((little, 0.1), (much, 0.3)):
        assert usage.data_wait_ns is not None
        assert usage.compute_ns is not None
        assert usage.data_wait_ns >= 2 * wait_s * NS
        assert usage.compute_ns >= 2 * (0.4 - wait_s) * NS


def test_saves_are_counted(drive: Any) -> None:
    driver = drive("counts")
    driver.run_to(1)
    usage = parsed(driver.end("pause")).usage
    assert usage is not None
    assert usage.saves == 1
    assert usage.saved_bytes


def test_any_usage_facts_from_user_code_can_be_recorded(drive: Any) -> None:
    usage = used(drive("says_anything_of_its_use"))
    assert len(usage.facts) == MAX_FACTS
    assert usage.data_wait_ns is None
    json.dumps(dict(usage.facts), allow_nan=False)


def test_delayed_sample_does_not_postpone_later_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempt: Any = SimpleNamespace(use=UsageMeter(), watch=SimpleNamespace(kind="train", of=lambda _: 0))

    def slow(_: int) -> list[int]:
        time.sleep(0.1)
        return []

    monkeypatch.setattr(sampling, "descendants", slow)
    sampling.sample_usage(attempt, [2**22 + 5])
    assert attempt.use.look_ns < 0.1 * NS / 2
    assert attempt.use.reading() is None, "the usage of a process that has ended is unknown"


def test_descendants_are_found_while_others_end() -> None:
    """A process that ends while it is listed hides none of the others, which would otherwise not be killed."""
    ends = "import subprocess, time\nwhile True: subprocess.run(['true'])"
    with (
        subprocess.Popen([sys.executable, "-S", "-c", ends]) as restless,
        subprocess.Popen(["sleep", "1000"]) as child,
    ):
        try:
            for _ in range(300):
                assert {child.pid, restless.pid} <= set(process_tree.descendants(os.getpid()))
            assert process_tree.descendants(2**22 + 5) == []
        finally:
            child.kill()
            restless.kill()


def test_child_processes_are_found_with_and_without_kernel_list(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            mine = process_tree.descendants(os.getpid())
            assert child.pid in mine
            monkeypatch.setattr(process_tree.Path, "read_bytes", _missing)
            assert child.pid in process_tree.descendants(os.getpid())
        finally:
            child.kill()


def _missing(path: object) -> bytes:
    raise FileNotFoundError(str(path))


class Nvml(ModuleType):
    """Two GPUs with a sequence of utilization percentages."""

    def __init__(self, percents: list[int]) -> None:
        super().__init__("pynvml")
        self.percents, self.named = percents, list[Any]()

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self.named.append(index)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        self.named.append(uuid)
        return 1

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=self.percents[handle])

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 << 30, used=(10 + handle) << 30)

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 9, 0


@pytest.mark.parametrize(
    ("visible", "percent", "expected"),
    [
        (None, 50, [0, 1]),
        ("1", 80, [1]),
        ("GPU-5", 80, ["GPU-5"]),
    ],
)
def test_only_visible_gpus_are_sampled(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, percent: int, expected: list[Any]
) -> None:
    nvml = Nvml([20, 80])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    sample = Gpus().sample()
    assert sample is not None
    assert nvml.named == expected
    assert sample.percent == percent
    assert sample.used_bytes == 11 << 30
    assert sample.facts == {
        "gpu": "NVIDIA H100 80GB HBM3",
        "gpu_memory_bytes": 80 << 30,
        "gpu_capability": "9.0",
    }


@pytest.mark.parametrize("visible", ["", "GPU"])
def test_unmeasurable_gpus_are_unknown_and_not_idle(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    nvml = Nvml([0, 0])
    nvml.nvmlDeviceGetHandleByUUID = None  # type: ignore[method-assign, assignment]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Gpus().sample() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus().sample() is None


def test_usage_is_recorded_when_the_attempt_is_billed() -> None:
    job, usage = Job(), Usage(wall_ns=NS, cpu_ns=NS // 2)
    meter = Meter({"setup": NS, "train": NS})
    for state, reported_usage in (("running", None), ("running", usage), ("preempted", usage)):
        job.loop.progress(WorkerMessage(job.trial, 2, state, meter, usage=reported_usage))  # type: ignore[arg-type]
    assert job.journal.tables.usages == {(job.trial, 2): usage}


# Sums and peaks

LOOKS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(1, 100)), min_size=1, max_size=8
)


@examples(30)
@given(LOOKS)
def test_cpu_time_never_decreases_and_counts_from_the_first_sample(looks: list[tuple[int, int, int]]) -> None:
    use, trained, cpu, before = UsageMeter(), 0, 1000, 0
    for more_cpu, more_trained, memory in looks:
        cpu, trained = cpu + more_cpu, trained + more_trained
        use.processes(ResourceUse(1, memory, cpu), trained_ns=trained)
        usage = Usage.parse(use.reading())
        assert usage is not None
        assert (usage.cpu_ns or 0) >= before
        before = usage.cpu_ns or 0
    assert usage.memory_peak_bytes == max(memory for *_, memory in looks)
    if usage.wall_ns is not None:
        assert usage.wall_ns == trained - looks[0][1]
        assert usage.cpu_ns == cpu - 1000 - looks[0][0]


@examples(30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.dictionaries(st.sampled_from([*COUNTS, "facts", "x"]), inner),
        max_leaves=10,
    )
)
def test_arbitrary_usage_message_parses_to_valid_usage_or_none(message: Any) -> None:
    usage = Usage.parse(message)
    if usage is not None:
        assert all(value is None or 0 <= value < 2**63 for value in (getattr(usage, name) for name in COUNTS))
        json.dumps(dict(usage.facts), allow_nan=False).encode()
