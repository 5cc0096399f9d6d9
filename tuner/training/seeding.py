"""One seed for all random generators that a training uses."""

import random
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

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
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AfterImport)]
    sys.meta_path.insert(0, AfterImport(lambda name: _seed(name, seed, threads)))


def seed_untouched(seed: int, *, before: int) -> None:
    """Seed the generators that user code has not seeded itself since `seed_everything(before)`.

    PyTorch records its seed. The generators of Python and NumPy do not, so they are also left unchanged if user code has drawn from them.
    """
    if random.getstate() == random.Random(before).getstate():
        random.seed(seed)
    numpy, torch = (sys.modules.get(name) for name in LIBRARIES)
    if numpy is not None and _state(numpy.random) == _state(numpy.random.RandomState(before % 2**32)):
        _seed("numpy", seed, None)
    if torch is not None and torch.initial_seed() == before % 2**63:
        _seed("torch", seed, None)


def _state(generator: Any) -> tuple[bytes, int]:
    """Return the state of a Mersenne Twister of NumPy in a form that can be compared."""
    _, words, position, *_ = generator.get_state()
    return words.tobytes(), position


class AfterImport(MetaPathFinder):
    """An import hook that calls a function after the first import of a library, with the library's name.

    The modules themselves are found by the other import finders.
    """

    def __init__(self, call: Callable[[str], None]) -> None:
        self._call = call

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in LIBRARIES:
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]  # one of them may be another `AfterImport`
        finders = [finder for finder in later if hasattr(finder, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._call(name)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def _seed(name: str, seed: int, threads: int | None) -> None:
    library = sys.modules[name]
    if name == "numpy":
        library.random.seed(seed % 2**32)
        return
    # `torch.manual_seed` also formats the call stack for each type of device, which takes longer than the rest of the seeding. Without such
    # devices, as in PyTorch for CPUs, only the default generator is seeded.
    has_devices = library.accelerator.current_accelerator() is not None
    (library if has_devices else library.default_generator).manual_seed(seed % 2**63)
    if threads is not None:
        library.set_num_threads(threads)
