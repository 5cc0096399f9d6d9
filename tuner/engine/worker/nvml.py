"""The GPUs of a worker, by NVIDIA's management library. Where it or its Python binding is missing nothing is known of them.

`pip install tuner[gpu]` brings the binding; the library comes with the driver. The utilisation is the share of the last sampling
period (a sixth of a second to a second, by the device) in which a kernel ran, of whichever process; the memory that of the device.
"""

import contextlib
import importlib
import os
from typing import Any

from tuner.engine.worker.using import GpuSample


class Gpus:
    """Those that this process may see, as Ray tells it by CUDA_VISIBLE_DEVICES. Used by one thread."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] | None = None

    def sample(self) -> GpuSample | None:
        """None where nothing can be known, as with a GPU that is split into parts (MIG)."""
        try:
            if self._handles is None:
                self._handles = []
                self._nvml = importlib.import_module("pynvml")
                self._nvml.nvmlInit()
                self._handles = self._visible()
            return self._read(self._handles) if self._handles else None
        except Exception:  # no binding, no library, no driver, or one that is of another age
            return None

    def _visible(self) -> list[Any]:
        """Raises where one of them is not there."""
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
        with contextlib.suppress(Exception):  # not every driver tells
            name = self._nvml.nvmlDeviceGetName(handles[0])
            facts["gpu"] = name.decode() if isinstance(name, bytes) else str(name)
            major, minor = self._nvml.nvmlDeviceGetCudaComputeCapability(handles[0])
            facts["gpu_capability"] = f"{major}.{minor}"
        return GpuSample(round(sum(percents) / len(percents)), max(int(one.used) for one in memory), facts)
