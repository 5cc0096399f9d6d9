"""Print each problem as `file:line: message`.

    python -m tools.checks                 # all checks
    python -m tools.checks examples core   # these two

The exit status is 1 if there is a problem, and 2 if a check of that name does not exist.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tools.checks import ROOT, Problem, core, docs, examples, monitoring, mutants

CHECKS: dict[str, Callable[[Path], Iterator[Problem]]] = {
    "core": core.check,
    "docs": docs.check,
    "examples": examples.check,
    "monitoring": monitoring.check,
    "mutants": mutants.check,
}


def main(names: Sequence[str]) -> int:
    if unknown := sorted(set(names) - set(CHECKS)):
        sys.stderr.write(f"unknown check {', '.join(unknown)}: use {', '.join(CHECKS)}\n")
        return 2
    problems = [problem for name in names or CHECKS for problem in CHECKS[name](ROOT)]
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
