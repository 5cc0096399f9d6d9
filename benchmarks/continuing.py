"""`python -m benchmarks.continuing TABLE.npz…`: how often `tuner best` is right about the result of training a trial further.

Trials that a search stopped early are continued on recorded learning curves. The benchmark counts how often the result is within the 80 %
interval that `tuner best` had predicted.
"""

import sys
from random import Random

from tuner.planning.outlooks import outlooks
from tuner.simulator.recorded import RecordedTable
from tuner.simulator.table_file import load_table

SEARCHES = [(seed, trials, factor) for seed in range(8) for trials, factor in ((30, 3), (80, 4), (150, 3))]
ASKED = 20


def main() -> None:
    held = asked = 0
    for path in sys.argv[1:]:
        inside = [is_inside for search in SEARCHES for is_inside in ended(load_table(path), *search)]
        held, asked = held + sum(inside), asked + len(inside)
        print(f"{path.rpartition('/')[2]}: {sum(inside) / len(inside):.2f} of {len(inside)}", flush=True)
    print(f"all: {held / asked:.2f} of {asked}")


def ended(table: RecordedTable, seed: int, trials: int, factor: int) -> list[bool]:
    """Run successive halving, and return for each of the best trials it cut short whether it ends within its interval."""
    rows = Random(seed).sample(range(len(table.configs)), min(trials, len(table.configs)))
    levels, step = [], max(1, round(table.steps / 12))
    while step < table.steps:
        levels.append(step)
        step *= factor
    levels.append(table.steps)
    came = dict.fromkeys(rows, 0)
    alive = rows
    for at, level in enumerate(levels):
        came.update(dict.fromkeys(alive, at))
        alive = sorted(alive, key=lambda row: -table.metric[row, level - 1])[: max(1, len(alive) // factor)]
    curves = {
        row: [float(table.metric[row, level - 1]) for level in levels[: at + 1]] for row, at in came.items()
    }
    cut = sorted((row for row, at in came.items() if at < len(levels) - 1), key=lambda row: -curves[row][-1])
    outlook_by_row = outlooks(len(levels), curves, cut[:ASKED])
    ends = {row: float(table.metric[row, -1]) for row in outlook_by_row}
    return [
        outlook.between()[0] <= ends[row] <= outlook.between()[1] for row, outlook in outlook_by_row.items()
    ]


if __name__ == "__main__":
    main()
