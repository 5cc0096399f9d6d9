"""One seed for all random generators that a training uses."""

import contextlib
import importlib
import random
import sys


def seed_everything(seed: int, *, threads: int | None = None) -> None:
    """Seed the generators of Python, NumPy and PyTorch as the service does before each trial.

    Args:
        seed: Any whole number. Generators that take fewer bits get the lowest ones.
        threads: How many threads PyTorch computes with, which changes the last digits of a result. None changes nothing.
    """
    random.seed(seed)
    for name in ("numpy", "torch"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.manual_seed(seed % 2**63)
        if threads is not None:
            torch.set_num_threads(threads)
