"""`python -m benchmarks.record --out DIR --logs DIR`: record tables of real trainings, for `tuner simulate` and `benchmarks.search`.

Each process trains random configurations of the trainables of `benchmarks.head_to_head` to the last step, one after the other. The trainables
take turns, so that each has its share of the rows if `--seconds` is too short for all rows. The time of a step in the tables is the
processor time of the training thread.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROWS = {"digits_xgboost": 2000, "digits_mlp": 1500, "digits_cnn": 400, "char_gpt2": 1000, "char_lm": 250}


def in_turn(rows: dict[str, int]) -> list[tuple[str, int]]:
    """Return the trainable and the number of each row, in such an order that the first rows are the same share of each trainable's rows."""
    shares = sorted(
        ((number + 1) / count, name, number) for name, count in rows.items() for number in range(count)
    )
    return [(name, number) for _, name, number in shares]


def training(trainable: str, number: int, folder: Path, ends: float) -> None:
    """Train a random configuration, drawn with the seed `number`, unless the clock has passed `ends`."""
    # Imported here, because `main` hides the GPU from PyTorch first.
    import optuna

    from benchmarks.head_to_head import suggested
    from benchmarks.metered import metered, module_of

    if time.time() >= ends:
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=number))
    config = suggested(study.ask(), module_of(trainable).SEARCH_SPACE)
    log = folder / f"{trainable}-{number}.jsonl"
    try:
        metered(trainable, log, config, lambda *_: None)
    except Exception as error:
        print(f"{trainable}, {config}: {error!r}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trainables", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument(
        "--rows", type=int, help="rows of each table; without it, each trainable has a number of its own"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=3600, help="after this time, no training is started")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--logs", type=Path, required=True, help="folder for the reports")
    args = parser.parse_args()
    os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    ends = time.time() + args.seconds
    for folder in (args.out, args.logs):
        folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.processes) as pool:
        rows = {name: args.rows or ROWS[name] for name in args.trainables}
        for done in [pool.submit(training, *row, args.logs, ends) for row in in_turn(rows)]:
            done.result()

    from benchmarks.head_to_head import write_table
    from benchmarks.metered import module_of

    for name in args.trainables:
        written = write_table(
            module_of(name), sorted(args.logs.glob(f"{name}-*.jsonl")), args.out / f"{name}.npz"
        )
        print(name, written, flush=True)


if __name__ == "__main__":
    main()
