"""Plant each mutant of `tools.planted` in a copy of the code, and run the tests that should notice it.

    python -m tools.mutants                # all mutants
    python -m tools.mutants money-float    # only the named mutants

The exit status is 1 if a mutant survives or cannot be planted, or if its tests do not run or take too long. It is 2 if a name is unknown, or
if the tests already fail or take too long in the unchanged code. The working tree is never changed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from tools.planted import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent
COPIES = 2  # copies of the code, each running tests at the same time
LIMIT_S = 300
LAST_LINES = 60  # of pytest's output, which are shown if the tests fail without any mutant
Result = Literal["killed", "survived", "not there", "no test ran", "too slow"]
# Exit statuses of pytest: https://docs.pytest.org/en/stable/reference/exit-codes.html
RESULTS: dict[int, Result] = {0: "survived", 1: "killed"}


def planted(mutant: Mutant, text: str) -> str | None:
    """Return the text of the file with the mutant planted, or None if the text to replace does not occur
    exactly once.
    """
    return text.replace(mutant.old, mutant.new) if text.count(mutant.old) == 1 else None


def copied(folder: Path) -> Path:
    """Copy everything that the tests need to `folder`, compile it, and return `folder`.

    The bytecode is validated by the hash of its source. With times instead of hashes, a file that changes twice within a second would seem
    unchanged.
    """
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("tuner", "trainables", "tests", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    words = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "tuner", "tests"]
    subprocess.run([sys.executable, *words], cwd=folder, check=True)
    return folder


def run_tests(folder: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """Run the tests. Return pytest's exit status, or None if the tests take longer than the limit, and pytest's output.

    A test whose external program is missing fails. If it were skipped, its mutants would seem to survive.
    """
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=core", "--hypothesis-seed=0"]
    words = [sys.executable, "-B", "-m", "pytest", *options, *tests]
    try:
        ran = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, "CI": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        return None, (error.output or b"").decode(errors="replace")
    return ran.returncode, ran.stdout.decode(errors="replace")


def attempt(folder: Path, mutant: Mutant) -> Result:
    path = folder / mutant.file
    before = path.read_text()
    after = planted(mutant, before)
    if after is None:
        return "not there"
    path.write_text(after)
    try:
        status, _ = run_tests(folder, mutant.tests)
    finally:
        path.write_text(before)
    return "too slow" if status is None else RESULTS.get(status, "no test ran")


def main(names: Sequence[str]) -> int:
    known = [mutant.name for mutant in MUTANTS]
    if unknown := [name for name in names if name not in known]:
        sys.stderr.write(f"unknown mutant {', '.join(unknown)}: use {', '.join(known)}\n")
        return 2
    chosen = [listed_mutant for listed_mutant in MUTANTS if not names or listed_mutant.name in names]
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        first = copied(Path(name))
        tests = sorted({test for chosen_mutant in chosen for test in chosen_mutant.tests})
        status, output = run_tests(first, tests)
        if status != 0:
            reason = "fail" if status is not None else f"take longer than {LIMIT_S} s"
            last = "\n".join(output.splitlines()[-LAST_LINES:])
            sys.stderr.write(f"{last}\nthe tests {reason} without any mutant\n")
            return 2
        folders: SimpleQueue[Path] = SimpleQueue()
        with ThreadPoolExecutor(COPIES) as pool, tempfile.TemporaryDirectory(prefix="mutants-") as parts:
            for number in range(COPIES):
                folders.put(Path(shutil.copytree(first, Path(parts) / str(number))))

            def run(mutant: Mutant) -> Result:
                folder = folders.get()
                try:
                    result = attempt(folder, mutant)
                finally:
                    folders.put(folder)
                sys.stdout.write(f"{result:11} {mutant.name}\n")
                sys.stdout.flush()
                return result

            results = list(pool.map(run, chosen))
    killed = results.count("killed")
    sys.stdout.write(f"{killed} of {len(results)} mutants killed\n")
    return int(killed < len(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
