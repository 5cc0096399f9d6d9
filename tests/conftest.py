"""What all tests share: a clean environment, the two tiers, the order of the files, and the external programs.

`make test` runs the gate. `make test-all` adds `--all`: tests marked `extended`, all seeds, and all generated requests.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadfile import LoadFileScheduling

from tools.programs import PROGRAMS
from tuner.store.database import Database

pytest_plugins = ["tests.clusters", "tests.postgres"]
TESTS = Path(__file__).parent
# Files that share a Ray cluster of tests/clusters.py, and so run on the same worker.
GROUPS = {
    "steady cluster": (
        "system/test_main_job.py",
        "system/test_bad_user_code.py",
        "system/test_control.py",
        "system/test_pages.py",
        "system/test_pilot.py",
        "system/test_bill.py",
        "system/test_notebook.py",
        "cluster/test_jobs.py",
        "cluster/test_dashboard.py",
    ),
    "breakable cluster": ("system/test_kills.py", "system/test_checkpoints.py", "system/test_restore.py"),
    "spot cluster": ("system/test_preempted.py", "system/test_spot_gate.py", "cluster/test_telling.py"),
}
GROUP_OF = {file: group for group, files in GROUPS.items() for file in files}
# Files that take longest. They start first, so that all workers end at about the same time.
FIRST = (*GROUP_OF,)

for name in [name for name in os.environ if name.startswith(("TUNER_", "RAY_", "AWS_"))]:
    del os.environ[name]
# The cloud that the tests run on must not decide their outcome.
os.environ["TUNER_CLOUD"] = "none"
# Several tests run at once. With one thread per core, each training would wait for the others longer than it computes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("without deadlines", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("without deadlines")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="run everything: extended tests, all seeds and generated requests, and as many fresh ones",
    )


# The two tiers


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the tier does not run, and put the files that take longest first."""
    if not config.getoption("--all"):
        extended = [item for item in items if item.get_closest_marker("extended")]
        if extended:
            config.hook.pytest_deselected(items=extended)
            items[:] = [item for item in items if not item.get_closest_marker("extended")]
    position = {TESTS / name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: position.get(item.path, len(FIRST)))


class ByCluster(LoadFileScheduling):
    """Give workers whole files, and all files that use the same Ray cluster to the same worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return GROUP_OF.get(file.removeprefix("tests/"), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByCluster:
    return ByCluster(config, log)


# External programs: @pytest.mark.needs("postgresql")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is missing. In CI it fails, as nobody would notice that it was skipped."""
    for mark in item.iter_markers("needs"):
        program = PROGRAMS[mark.args[0]]
        if program.missing():
            if os.environ.get("CI") == "true":
                pytest.fail(f"{program.name} is missing: {program.install_command}", pytrace=False)
            item.user_properties.append(("missing program", program.name))
            pytest.skip(f"{program.name} is missing: {program.install_command}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print which tests did not run because a program is missing, and how to install it."""
    not_run = Counter(
        value
        for report in terminalreporter.stats.get("skipped", [])
        for name, value in report.user_properties
        if name == "missing program"
    )
    if not_run:
        terminalreporter.section("tests that were not run")
        terminalreporter.write_line(f"{'program':<18}{'tests':>6}  install it with")
        for name, count in not_run.items():
            terminalreporter.write_line(f"{name:<18}{count:>6}  {PROGRAMS[name].install_command}")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    from tests import fakes  # imports a service, which not every test needs

    made = fakes.database_in(tmp_path)
    yield made
    made.dispose()
