"""A hyperparameter-tuning service on Ray with hard budgets in dollars and GPU-hours."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.client import AsyncClient, Client

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "__version__"]


def __getattr__(name: str) -> object:
    """Import `tuner.Client` and `tuner.AsyncClient` on first use, so that `import tuner` stays fast."""
    if name in ("AsyncClient", "Client"):
        from tuner import client

        return getattr(client, name)
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")
