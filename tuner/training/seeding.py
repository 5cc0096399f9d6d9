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
    _seed_all(seed, threads, is_marked=False)


def seed_attempt(seed: int) -> None:
    """Seed the generators as `seed_everything(seed)` does, and mark them for `seed_untouched`. They draw the same numbers.

    The mark distinguishes them from generators that user code has seeded with the same number.
    """
    _seed_all(seed, None, is_marked=True)


def seed_untouched(seed: int, *, before: int) -> None:
    """Seed the generators that user code has not seeded itself since `seed_attempt(before)`.

    The marks of Python and NumPy are lost when numbers are drawn, so these generators are also left unchanged if user code has drawn from
    them.
    """
    ours = random.Random(before)
    _mark_python(ours)
    if random.getstate() == ours.getstate():
        random.seed(seed)
    numpy, torch = (sys.modules.get(name) for name in LIBRARIES)
    if numpy is not None:
        legacy = numpy.random.RandomState(before % 2**32)
        _mark_numpy(legacy)
        if _state(numpy.random) == _state(legacy):
            _seed("numpy", seed, None)
    if torch is not None and _is_untouched(torch, before):
        _seed("torch", seed, None)


def _seed_all(seed: int, threads: int | None, *, is_marked: bool) -> None:
    random.seed(seed)
    if is_marked:
        _mark_python(random)
    for name in LIBRARIES:
        if name in sys.modules:
            _seed(name, seed, threads, is_marked=is_marked)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AfterImport)]
    sys.meta_path.insert(0, AfterImport(lambda name: _seed(name, seed, threads, is_marked=is_marked)))


# A Mersenne Twister computes its numbers in blocks of 624. A generator that was just seeded computes its first block when it draws a number.
# One whose first block is already computed, and not yet used, draws the same numbers from another state. This state is the mark.


def _mark_python(generator: Any) -> None:
    generator.getrandbits(32)
    version, words, gauss = generator.getstate()
    generator.setstate((version, (*words[:-1], 0), gauss))


def _mark_numpy(generator: Any) -> None:
    generator.bytes(4)
    name, words, _, *gauss = generator.get_state()
    generator.set_state((name, words, 0, *gauss))


class _SeedWatch:
    """The mark of PyTorch: it takes the place of a function that PyTorch calls whenever all its generators are seeded, until this happens.

    User code may have imported `manual_seed` before, so `manual_seed` itself is not replaced.
    """

    def __init__(self, module: Any) -> None:
        self._module, self._seed = module, module._seed_custom_device

    def install(self) -> None:
        self._module._seed_custom_device = self

    def __call__(self, seed: int) -> None:
        self.remove()
        self._seed(seed)

    def remove(self) -> None:
        self._module._seed_custom_device = self._seed


def _watch_of(torch: Any) -> _SeedWatch | None:
    watch = getattr(torch.random, "_seed_custom_device", None)
    return watch if isinstance(watch, _SeedWatch) else None


def _is_untouched(torch: Any, seed: int) -> bool:
    """Return whether PyTorch has not been seeded since `seed_attempt(seed)`. The numbers drawn since then do not matter."""
    return _watch_of(torch) is not None and torch.initial_seed() == seed % 2**63


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


def _seed(name: str, seed: int, threads: int | None, *, is_marked: bool = False) -> None:
    library = sys.modules[name]
    if name == "numpy":
        library.random.seed(seed % 2**32)
        if is_marked:
            _mark_numpy(library.random)
        return
    if watch := _watch_of(library):
        watch.remove()
    # `torch.manual_seed` also formats the call stack for each type of device, which takes longer than the rest of the seeding. Without such
    # devices, as in PyTorch for CPUs, only the default generator is seeded.
    has_devices = library.accelerator.current_accelerator() is not None
    (library if has_devices else library.default_generator).manual_seed(seed % 2**63)
    if is_marked and hasattr(library.random, "_seed_custom_device"):
        _SeedWatch(library.random).install()
    if threads is not None:
        library.set_num_threads(threads)
