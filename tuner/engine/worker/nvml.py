"""Measurements of a worker's GPUs with NVIDIA's management library (NVML). Without it or its Python binding, nothing is measured.

`pip install tuner[gpu]` installs the binding. The library comes with the GPU driver. The utilisation is the share of the last
sampling period in which a kernel of any process ran. The period is 1/6 s to 1 s, depending on the device. The memory is that of the
whole device.
"""

import contextlib
import importlib
import os
from typing import Any

from tuner.engine.worker.using import GpuSample


class Gpus:
    """The GPUs that this process may use according to CUDA_VISIBLE_DEVICES, which Ray sets. Used by one thread."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] | None = None

    def sample(self) -> GpuSample | None:
        """Return a sample over all GPUs, or None if they cannot be measured, for example a GPU that is split with MIG."""
        try:
            if self._handles is None:
                self._handles = []
                self._nvml = importlib.import_module("pynvml")
                self._nvml.nvmlInit()
                self._handles = self._visible()
            return self._read(self._handles) if self._handles else None
        except Exception:  # no binding, no library, no driver, or versions that do not match
            return None

    def _visible(self) -> list[Any]:
        """Return the handles of the visible GPUs. Raise if one of them does not exist."""
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        if named is None:
            words = [str(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        else:
            words = [word.strip() for word in named.split(",") if word.strip()]
        by_index, by_uuid = self._nvml.nvmlDeviceGetHandleByIndex, self._nvml.nvmlDeviceGetHandleByUUID
        return [by_index(int(word)) if word.isdecimal() else by_uuid(word) for word in words]

    def _read(self, handles: list[Any]) -> GpuSample:
        percents = [int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles]
        memory = [self._nvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
        facts: dict[str, Any] = {"gpu_memory_bytes": min(int(one.total) for one in memory)}
        with contextlib.suppress(Exception):  # not every GPU driver supports these queries
            name = self._nvml.nvmlDeviceGetName(handles[0])
            facts["gpu"] = name.decode() if isinstance(name, bytes) else str(name)
            major, minor = self._nvml.nvmlDeviceGetCudaComputeCapability(handles[0])
            facts["gpu_capability"] = f"{major}.{minor}"
        return GpuSample(round(sum(percents) / len(percents)), max(int(one.used) for one in memory), facts)
