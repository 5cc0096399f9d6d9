"""Import Ray Tune without Ray Data and pandas. The driver imports all names of Ray Tune from this module.

Ray Tune imports Ray Data and pandas to name one class of each in type annotations. The driver uses neither. Importing
them takes 0.9 s of processor time, a third of what a driver needs to start.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

import ray

# The modules that are not imported, each with the class of it that Ray Tune's type annotations name.
_NOT_IMPORTED = {"ray.data": "Dataset", "pandas": "DataFrame"}


class _Placeholder(ModuleType):
    """A stand-in for a module that is not imported yet.

    It has one class of the module, for type annotations. When any other name is used, the real module is imported.
    """

    def __init__(self, name: str, annotated: str) -> None:
        super().__init__(name)
        setattr(self, annotated, type(annotated, (), {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith(
            "__"
        ):  # the import system looks up __path__, __spec__ and others, which must not import the module
            raise AttributeError(name)
        self.withdraw()
        return getattr(importlib.import_module(self.__name__), name)

    def withdraw(self) -> None:
        """Remove this placeholder from `sys.modules`, so that the next import of the module imports the real one."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


_placeholders = [_Placeholder(name, used) for name, used in _NOT_IMPORTED.items() if name not in sys.modules]
sys.modules.update({placeholder.__name__: placeholder for placeholder in _placeholders})
if "ray.data" not in vars(ray):
    vars(ray)["data"] = sys.modules["ray.data"]

from ray import tune  # noqa: E402
from ray.air._internal import usage  # noqa: E402
from ray.train._internal.storage import StorageContext  # noqa: E402
from ray.tune.execution.class_cache import _ActorClassCache  # noqa: E402
from ray.tune.execution.placement_groups import PlacementGroupFactory  # noqa: E402
from ray.tune.experiment import Trial  # noqa: E402
from ray.tune.experiment.trial import _TrialInfo  # noqa: E402
from ray.tune.schedulers import TrialScheduler  # noqa: E402
from ray.tune.search import Searcher  # noqa: E402

for _placeholder in _placeholders:
    _placeholder.withdraw()

__all__ = [
    "PlacementGroupFactory",
    "Searcher",
    "StorageContext",
    "Trial",
    "TrialScheduler",
    "_ActorClassCache",
    "_TrialInfo",
    "tune",
    "usage",
]
