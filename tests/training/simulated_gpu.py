"""A GPU that exists only as a label: tensors moved to it say that they are on `cuda`, and are computed on the CPU.

The rules are CUDA's: an operation takes tensors of one device, except that 0-dimensional tensors and indices may be on the
CPU, and NumPy reads no tensor of the GPU. A training that works on the simulated GPU therefore moves all of its data, and its
results must be those of the CPU. CUDA's kernels, its memory and its random numbers are not simulated.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
PROPERTIES = {
    torch.Tensor.device.__get__: (CPU, GPU),  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: (True, False),  # type: ignore[attr-defined]
    torch.Tensor.is_cuda.__get__: (False, True),  # type: ignore[attr-defined]
}
MOVES = {torch.Tensor.to: None, torch.Tensor.cuda: GPU, torch.Tensor.cpu: CPU}
TO_NUMPY = (torch.Tensor.numpy, torch.Tensor.__array__)
INDEXING = ("aten::index", "aten::_index_put_impl_", "aten::index_put", "aten::index_put_")
FUNCTIONS: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "synchronize": lambda: None,
    "get_rng_state_all": list,  # random numbers come from the CPU's generator
}


class _Memory(TorchDispatchMode):
    """Track which storages are on the GPU, and check each operation. Results are on the device of the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._on_gpu: dict[int, StorageWeakRef] = {}
        self._target: bool | None = None

    def holds(self, tensor: torch.Tensor) -> bool:
        return StorageWeakRef(tensor.untyped_storage()).cdata in self._on_gpu

    @contextmanager
    def results_on(self, device: torch.device) -> Iterator[None]:
        """Place the results of the operations in this context on `device`, wherever their arguments are."""
        before, self._target = self._target, device.type == GPU.type
        yield
        self._target = before

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_gpu = any(map(self.holds, tensors))
        name = function._schema.name
        if on_gpu and self._target is None and name != "aten::copy_":
            bound = [args[0]] if name in INDEXING else tensors
            if any(tensor.dim() and not self.holds(tensor) for tensor in bound):
                raise RuntimeError(f"{name}: expected all tensors to be on the same device, {GPU} or cpu")
        output = function(*args, **(kwargs or {}))
        if self._target if self._target is not None else on_gpu and name != "aten::copy_":
            # A weak reference keeps the address from being used again, but not the memory.
            refs = [StorageWeakRef(x.untyped_storage()) for x in tree_leaves(output) if torch.is_tensor(x)]
            self._on_gpu.update((ref.cdata, ref) for ref in refs)
        return output


class _Labels(TorchFunctionMode):
    """Report the device of each tensor, and intercept calls that name a device."""

    def __init__(self, memory: _Memory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in PROPERTIES:
            return PROPERTIES[function][self._memory.holds(args[0])]
        if function in TO_NUMPY and self._memory.holds(args[0]):
            raise TypeError(f"can't convert {GPU} device type tensor to numpy; use Tensor.cpu() first")
        if function in MOVES:
            return self._move(function, *args, **kwargs)
        if kwargs.get("device") is None:
            return function(*args, **kwargs)
        device = torch.device(kwargs.pop("device"))
        with self._memory.results_on(device):
            return function(*args, **kwargs, device=CPU)

    def _move(self, function: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        before = GPU if self._memory.holds(tensor) else CPU
        device, dtype, copy = MOVES[function], None, kwargs.pop("copy", False)
        if device is None:
            device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        device = device or before
        with self._memory.results_on(device):
            return tensor.to(CPU, dtype or tensor.dtype, copy=copy or device.type != before.type)


@contextmanager
def simulated_gpu() -> Iterator[None]:
    """Give PyTorch one GPU while the context is open."""
    memory = _Memory()
    with ExitStack() as stack:
        for name, function in FUNCTIONS.items():
            stack.enter_context(patch.object(torch.cuda, name, function))
        # Adam asks this function for the GPU. With a CUDA build, it would then call the missing driver.
        stack.enter_context(
            patch.object(torch.accelerator, "current_accelerator", lambda check_available=False: None)
        )
        stack.enter_context(memory)
        stack.enter_context(_Labels(memory))
        yield
