"""One seed for all random generators that a training uses."""

import random
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

LIBRARIES = ("numpy", "torch")


def seed_everything(seed: int, *, threads: int | None = None) -> None:
    """Seed the generators of Python, NumPy and PyTorch as the service does before each trial.

    A library that is not imported yet is seeded when it is imported, so that a training without PyTorch does not wait for its import.

    Args:
        seed: Any whole number. Generators that take fewer bits get the lowest ones.
        threads: How many threads PyTorch computes with, which changes the last digits of a result. None changes nothing.
    """
    random.seed(seed)
    for name in LIBRARIES:
        if name in sys.modules:
            _seed(name, seed, threads)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _SeedAtImport)]
    sys.meta_path.insert(0, _SeedAtImport(seed, threads))


class _SeedAtImport(MetaPathFinder):
    """Finds no module itself. It has the import system seed a library after its first import."""

    def __init__(self, seed: int, threads: int | None) -> None:
        self._seed, self._threads = seed, threads

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in LIBRARIES:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        found = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_seed(module: ModuleType) -> None:
                execute(module)
                _seed(name, self._seed, self._threads)

            spec.loader.exec_module = execute_and_seed  # type: ignore[method-assign]
        return spec


def _seed(name: str, seed: int, threads: int | None) -> None:
    library = sys.modules[name]
    if name == "numpy":
        library.random.seed(seed % 2**32)
        return
    library.manual_seed(seed % 2**63)
    if threads is not None:
        library.set_num_threads(threads)
