"""Run real processes under the faults of a seed, and print what happened: `python -m tests.chaos --minutes 10`.

Exits by itself. The exit status is 1 if anything was lost, doubled, overspent or otherwise broken.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from tests.chaos.history import History
from tests.chaos.plan import FAULTS, KINDS, chosen, without_network
from tests.chaos.supervisor import Run, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, help="of an earlier run, to have its faults again")
    parser.add_argument(
        "--faults",
        default="",
        metavar="NAMES",
        help=f"kinds ({', '.join(KINDS)}) or names, with commas between: {', '.join(fault.name for fault in FAULTS)}",
    )
    parser.add_argument("--sqlite", action="store_true", help="SQLite, a folder and one node, and no proxies")
    parser.add_argument("--services", type=int, help="replicas; by default two, with SQLite one")
    parser.add_argument(
        "--every", type=float, default=7.0, metavar="SECONDS", help="between faults of processes, on average"
    )
    parser.add_argument("--history", type=Path, help="file that is written")
    args = parser.parse_args()
    for name in [name for name in os.environ if name.startswith(("TUNER_", "RAY_", "AWS_"))]:
        del os.environ[name]
    seed = SystemRandom().randrange(10**6) if args.seed is None else args.seed
    path = args.history or Path(tempfile.gettempdir()) / f"chaos-{seed}.jsonl"
    words = [word.strip() for word in args.faults.split(",") if word.strip()]
    print(
        f"seed {seed}; again: python -m tests.chaos {_again(sys.argv[1:], seed)}; history: {path}", flush=True
    )
    faults = without_network(chosen(words)) if args.sqlite else chosen(words)
    asked = Run(
        seed,
        60 * args.minutes,
        faults,
        with_postgres=not args.sqlite,
        services=args.services or (1 if args.sqlite else 2),
        every_s=args.every,
    )
    history = History(path)
    try:
        outcome = run(asked, history, lambda text: print(text, flush=True))
    finally:
        history.close()
    for text in [
        *outcome.lines,
        *(f"BROKEN {violation.rule}: {violation.job} {violation.detail}" for violation in outcome.broken),
    ]:
        print(text)
    print(f"seed {seed}: {'broken' if outcome.broken else 'nothing is broken'}")
    return 1 if outcome.broken else 0


def _again(words: list[str], seed: int) -> str:
    return " ".join(words if "--seed" in words else [*words, "--seed", str(seed)])


if __name__ == "__main__":
    sys.exit(main())
