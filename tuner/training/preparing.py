"""Prepare data once for all trials of a worker.

A worker starts each attempt by forking a process that has already imported the trainable. What this process has computed is in the
memory of every attempt, and takes no time and no further memory (copy-on-write) as long as it is only read.
"""

import functools
import inspect
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Generic, ParamSpec, TypeVar

from tuner.training.seeding import LIBRARIES, AfterImport

P = ParamSpec("P")
R = TypeVar("R")

SEED = 0  # the seed of the random generators while data is prepared
_PREPARED: list["Prepared[..., Any]"] = []


class Prepared(Generic[P, R]):
    """Wrap a function so that it computes the result for given arguments once, with the same random numbers in every process."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._function, self._signature = function, inspect.signature(function)
        self._results: dict[str, R] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result for these arguments. Only the first call with these arguments computes it.

        Raises:
            TypeError: An argument is not a number, a string, a boolean, None, or a list or dictionary of these.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            key = json.dumps(bound.arguments, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"the arguments of {self._function.__name__} must be plain values, like the job's constants: {error}"
            ) from error
        if key not in self._results:
            with _repeatable():
                self._results[key] = self._function(*args, **kwargs)
        return self._results[key]

    def prepare(self, constants: Mapping[str, Any]) -> None:
        """Compute the result in advance, with the job's constants that have the names of the function's parameters.

        Do nothing if the job has no constant for a parameter without a default.
        """
        parameters = self._signature.parameters.values()
        if any(
            parameter.default is parameter.empty and parameter.name not in constants
            for parameter in parameters
        ):
            return
        named: Any = {
            parameter.name: constants[parameter.name]
            for parameter in parameters
            if parameter.name in constants
        }
        result: Callable[..., R] = self
        result(**named)


def prepare(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that loads or computes data which all trials of a job read.

    A worker calls the function once, before its first trial, if its arguments are constants of the job. A trial that calls the function
    with these arguments gets the same object. With other arguments, and outside of the service, the first call in a process
    computes the result, and later calls return it.

        @prepare
        def dataset(folder, size=32):
            return load(folder, size)

        def train(config):
            data = dataset(config["folder"])

    While the function runs, the random generators of Python, NumPy and PyTorch have a fixed seed, and PyTorch computes with one thread,
    so that every worker prepares the same data. The generators' states and the number of threads are restored afterwards. Import NumPy
    and PyTorch at the top of the module: an import inside the function may start threads. The function must not use a GPU or leave threads
    running, because such a process cannot be forked. If the function does so, the worker's result is not used, and each trial calls the
    function itself.

    Args:
        function: It takes plain values, by the names that they have in the job's `constants`, and returns anything.

    Returns:
        A function with the same signature.
    """
    prepared = Prepared(function)
    _PREPARED.append(prepared)
    return prepared


def prepare_all(constants: Mapping[str, Any]) -> None:
    """Call each function that is decorated with `prepare` and whose arguments are constants of the job.

    If a function raises an error, raise it and do not call the remaining functions.
    """
    for prepared in _PREPARED:
        prepared.prepare(constants)


@contextmanager
def _repeatable() -> Iterator[None]:
    """Seed the random generators, and restore their states at the end of the block.

    A library that is imported in the block is seeded when it is imported. PyTorch computes with one thread meanwhile. Otherwise OpenMP
    would start threads in this process, and a process that is forked from it would hang as soon as it uses OpenMP.
    """
    kept: dict[str, Any] = {}

    def seed(name: str) -> None:
        library: Any = sys.modules[name]
        if name == "numpy":
            kept[name] = library.random.get_state()
            library.random.seed(SEED)
        else:
            kept[name] = library.get_rng_state(), library.get_num_threads()
            library.default_generator.manual_seed(SEED)
            library.set_num_threads(1)

    state = random.getstate()
    random.seed(SEED)
    for name in sys.modules.keys() & {*LIBRARIES}:
        seed(name)
    hook = AfterImport(seed)
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        with suppress(ValueError):  # the function called `seed_everything`, which has removed the hook
            sys.meta_path.remove(hook)
        random.setstate(state)
        if "numpy" in kept:
            sys.modules["numpy"].random.set_state(kept["numpy"])
        if "torch" in kept:
            torch: Any = sys.modules["torch"]
            torch.set_rng_state(kept["torch"][0])
            torch.set_num_threads(kept["torch"][1])
