"""Fast tests import neither Ray nor torch: each takes seconds, in every process of pytest that collects them.

The gate checks what its own collection imports. Run as a program, this module imports all modules of the fast tests, runs a few of
the tests, and prints how Ray or torch was first imported, if it was.
"""

import importlib
import subprocess
import sys
import traceback
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest

from tools.gate import HEAVY

ROOT = Path(__file__).parents[1]
SLOW = ("ray", "torch")
FAST = (
    "api", "browser", "cli", "client", "contracts", "deploy", "domain", "mirrors", "monitoring", "planning", "service",
    "simulation", "store", "tuning",
)  # fmt: skip
# From a request to the bill, and one test of each package below.
SAMPLE = (
    "api/test_bills_and_trials.py",
    "cli/test_spending.py",
    "client/test_client.py",
    "contracts/test_simulated_jobs_in_sql.py",
    "domain/test_budget.py",
    "planning/test_pilot.py",
    "service/test_self_tests.py",
    "store/test_journal_rows.py",
    "tuning/test_decide.py",
)


class FirstImports(MetaPathFinder):
    """Record the stack at the first import of each slow package."""

    def __init__(self) -> None:
        self.stacks: dict[str, list[str]] = {}

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name in SLOW and name not in self.stacks:
            stack = traceback.extract_stack()[:-1]
            self.stacks[name] = [
                f"{at.filename}:{at.lineno}" for at in stack if "importlib" not in at.filename
            ]

    def report(self) -> list[str]:
        """Describe each slow package that is imported, with the latest callers of its import."""
        # The finder is also asked by `find_spec`, which imports nothing.
        imported = {name: stack for name, stack in self.stacks.items() if name in sys.modules}
        return [
            f"{name} is imported by way of\n  " + "\n  ".join(stack[-8:]) for name, stack in imported.items()
        ]


class ImportAllAndRunAFew:
    """A plugin of pytest that imports all modules, and runs only the first test of each collected module."""

    def pytest_sessionstart(self) -> None:
        for path in sorted(path for folder in FAST for path in (ROOT / "tests" / folder).glob("*.py")):
            if "openapi" not in path.name:  # schemathesis takes seconds
                importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = {item.path: item for item in reversed(items)}.values()


def main() -> int:
    imports = FirstImports()
    sys.meta_path.insert(0, imports)
    # Rewriting the assertions of all modules would take longer than the rest.
    arguments = ["--assert=plain", "-p", "no:cacheprovider", *(f"tests/{name}" for name in SAMPLE)]
    status = pytest.main(arguments, plugins=[ImportAllAndRunAFew()])
    lines = imports.report()
    print(*lines, sep="\n")
    return 1 if lines else int(status)


def test_collecting_fast_tests_imports_neither_ray_nor_torch(
    request: pytest.FixtureRequest, collected_modules: frozenset[str]
) -> None:
    if any(item.nodeid.startswith(HEAVY) for item in request.session.items):
        pytest.skip(f"this run has tests of {', '.join(HEAVY)}, which import them")
    assert collected_modules.isdisjoint(SLOW)


@pytest.mark.extended
def test_fast_tests_import_neither_ray_nor_torch_while_they_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_imports"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
