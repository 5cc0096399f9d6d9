"""Small tables with a known best row, as files and in memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tuner.simulator.recorded import RecordedTable
from tuner.simulator.table_file import load_table

SPACE = [
    ["lr", 1e-4, 1.0, "log", "float"],
    ["width", 8, 64, "lin", "int"],
    ["momentum", 0.0, 0.999, "lin1m", "float"],
]


def arrays(rows: int = 40, steps: int = 9, *, seed: int = 0, mean_s: float = 20.0) -> dict[str, Any]:
    """Return the arrays of a table. Wider rows take longer, and the best learning rate is 0.01."""
    rng = np.random.default_rng(seed)
    lr = np.exp(rng.uniform(np.log(1e-4), 0, rows))
    width = rng.integers(8, 65, rows)
    momentum = 1 - np.exp(rng.uniform(np.log(0.001), 0, rows))
    step = np.arange(1, steps + 1)
    metric = 1 - np.abs(np.log10(lr) + 2)[:, None] / 4 - 0.5 / step[None, :]
    time = (0.5 + width / 64)[:, None] * np.ones(steps)[None, :] * mean_s
    meta = json.dumps({"space": SPACE})
    return {
        "X": np.stack([lr, width, momentum], axis=1),
        "metric": metric,
        "time": time,
        "meta": np.array(meta),
    }


def written(path: Path, columns: dict[str, Any] | None = None) -> Path:
    np.savez(path, **(columns or arrays()))
    return path


def table(folder: Path, **shape: Any) -> RecordedTable:
    return load_table(written(folder / "made.npz", arrays(**shape)))
