"""A hyperparameter-tuning service on Ray with hard budgets in dollars and GPU-hours."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.client import Client

__version__ = "0.1.0"
__all__ = ["Client", "__version__"]


def __getattr__(name: str) -> object:
    """`tuner.Client`, loaded when it is first asked for."""
    if name == "Client":
        from tuner.client import Client

        return Client
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")
