"""A stand-in for the module torch._dynamo, which optimizers import but do not use unless something is compiled.

The first optimizer of a process imports torch._dynamo, and its import takes two seconds of processor time. An optimizer
only calls `disable`, which keeps the compiler away from a function, and `graph_break`, which splits what is compiled.
Without a compiler both have no effect. The stand-in does nothing for these two calls. It imports the real module when
code uses any other attribute of the module, as `torch.compile` does.
"""

import importlib
import sys
import threading
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"
# PyTorch stores the result of `disable` in this attribute of the function that was passed to it.
KEPT = "__dynamo_disable"


class StandIn(ModuleType):
    """A placeholder for torch._dynamo until the module is needed.

    Args:
        on_import: Called when the module is imported.
    """

    def __init__(self, on_import: Callable[[], None]) -> None:
        super().__init__(NAME)
        self._on_import = on_import
        self._disabled = list[Any]()
        self._lock = threading.Lock()  # not held during an import

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """Stand in for `torch._dynamo.disable`, which keeps the compiler away from `fn`.

        With the options that PyTorch's optimizers use, return `fn` unchanged. PyTorch stores this result in an attribute of `fn`. When
        the real module is imported, the attribute is removed. With other options, import the real module at once.
        """
        with self._lock:
            if fn is not None and options == {"wrapping": False} and sys.modules.get(NAME) is self:
                self._disabled.append(fn)
                return fn
        return self.imported().disable(fn, recursive, **options)

    def graph_break(self, *arguments: Any, **options: Any) -> None:
        if sys.modules.get(NAME) is not self:
            self.imported().graph_break(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("__") and name != "__path__"
        ):  # the import system looks up such names; only __path__ needs the module
            raise AttributeError(name)
        return getattr(self.imported(), name)

    def imported(self) -> Any:
        """Return the real torch._dynamo. The first call imports it and removes the stand-in."""
        with self._lock:
            if sys.modules.get(NAME) is self:
                del sys.modules[NAME], sys.modules["torch"]._dynamo
                for fn in self._disabled:
                    vars(fn).pop(KEPT, None)
                self._on_import()
        return importlib.import_module(NAME)


class _Imported(MetaPathFinder, Loader):
    """Finds the submodules of torch._dynamo that are already imported, so that they are not imported a second time.

    While the stand-in is in place, `import torch._dynamo.config` first reads the `__path__` of the stand-in. This imports the real
    module together with its submodule `config`, and the import system would then import `config` again.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_imported = name.startswith(f"{NAME}.") and name in sys.modules
        return ModuleSpec(name, self) if is_imported else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = sys.modules[spec.name]
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if (
            spec is not None and spec.loader is self
        ):  # give the module back its own spec; torch._dynamo.config has kept it
            module.__spec__ = spec.loader_state


def stand_in(on_import: Callable[[], None]) -> None:
    """Put a stand-in in the place of torch._dynamo. Do nothing if PyTorch is not imported, or if torch._dynamo is already imported.

    Args:
        on_import: Called in this process, or in a fork of it, when the real module is needed and therefore imported.
    """
    torch = sys.modules.get("torch")
    if torch is not None and NAME not in sys.modules:
        sys.modules[NAME] = vars(torch)["_dynamo"] = StandIn(on_import)
        sys.meta_path.insert(0, _Imported())


def end_stand_in() -> None:
    """Replace the stand-in by the real torch._dynamo. Do nothing without a stand-in."""
    if isinstance(module := sys.modules.get(NAME), StandIn):
        module.imported()
