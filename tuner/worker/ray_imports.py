"""Import Ray Tune without Ray Data and pandas.

Ray Tune imports Ray Data and pandas to name one class of each in type annotations. Trainables rarely use either, and
the driver uses neither. Importing them takes a third of a second of processor time and 57 MB in each process.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# The packages of Ray that import Ray Data and pandas.
IMPORTERS = ("ray.tune", "ray.train")
# The modules that they do not get, each with the class of it that Ray's type annotations name.
_LEFT_OUT = {"ray.data": "Dataset", "pandas": "DataFrame"}


class _Placeholder(ModuleType):
    """A stand-in for a module that is not imported yet.

    Until it is withdrawn, it has one class of the module, for type annotations. When any other name is used, the real module is imported.
    Modules that have imported a placeholder keep it, and reach the real module through it.
    """

    def __init__(self, name: str, annotated: str) -> None:
        super().__init__(name)
        setattr(self, annotated, type(annotated, (), {}))
        self._annotated = annotated

    def __getattr__(self, name: str) -> Any:
        # The import system looks up __path__, __spec__ and others, which must not import the module.
        if name.startswith("__"):
            raise AttributeError(name)
        self.withdraw()
        return getattr(importlib.import_module(self.__name__), name)

    def withdraw(self) -> None:
        """Remove this placeholder and its class, so that all later uses of the module get the real one."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        vars(self).pop(self._annotated, None)
        package, _, name = self.__name__.rpartition(".")
        if package and vars(sys.modules[package]).get(name) is self:
            delattr(sys.modules[package], name)


@contextlib.contextmanager
def without_pandas() -> Iterator[None]:
    """Within the context, modules that import Ray Data or pandas get placeholders for those that are not imported yet.

    Use this only around imports of Ray. Other modules need the real classes.
    """
    import ray

    placeholders = [_Placeholder(name, used) for name, used in _LEFT_OUT.items() if name not in sys.modules]
    sys.modules.update({placeholder.__name__: placeholder for placeholder in placeholders})
    if isinstance(data := sys.modules["ray.data"], _Placeholder):
        vars(ray)["data"] = data
    try:
        yield
    finally:
        for placeholder in placeholders:
            placeholder.withdraw()


class _Finder(MetaPathFinder):
    """Finds the packages in `IMPORTERS`, and executes them `without_pandas`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in IMPORTERS:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_without_pandas(module: ModuleType) -> None:
                with without_pandas():
                    execute(module)

            spec.loader.exec_module = execute_without_pandas  # type: ignore[method-assign]
        return spec


def leave_out_pandas() -> None:
    """Make every later import of Ray Tune or Ray Train in this process leave out Ray Data and pandas.

    Code that imports one of the two, or uses one of them through Ray, gets the real module.
    """
    sys.meta_path.insert(0, _Finder())
