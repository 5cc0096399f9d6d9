"""Configure all tests: a clean environment, the two tiers, the order of the files, and the external programs.

`make test` runs the gate. `make test-all` adds `--all`: tests marked `extended`, all seeds, and all generated
requests.
"""

import gc
import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from typer import testing
from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import NodeManager

from tests import statements  # noqa: F401  # shares compiled SQL
from tools.programs import PROGRAMS
from tuner.database.database import Database

pytest_plugins = ["tests.clusters", "tests.postgres"]
TESTS = Path(__file__).parent
# Files that share a Ray cluster of tests/clusters.py, a browser, or a fork server and an S3 server of tests/worker/conftest.py, and so
# run on the same worker.
GROUPS = {
    "steady cluster": (
        "system/test_main_job.py",
        "system/test_bad_user_code.py",
        "hostile/test_service.py",
        "system/test_control.py",
        "system/test_pages.py",
        "system/test_pilot.py",
        "system/test_bill.py",
        "system/test_notebook.py",
        "system/test_packing.py",
        "cluster/test_jobs.py",
        "cluster/test_dashboard.py",
    ),
    "breakable cluster": ("system/test_kills.py", "system/test_checkpoints.py", "system/test_restore.py"),
    "spot cluster": ("system/test_preempted.py", "system/test_spot_self_test.py", "cluster/test_telling.py"),
    "browser": (
        "browser/test_actions.py",
        "browser/test_dashboards.py",
        "browser/test_page.py",
        "browser/test_trial.py",
        "browser/test_trials.py",
    ),
    "fork server": (
        "worker/test_artifacts.py",
        "worker/test_attempt_logs.py",
        "worker/test_best_checkpoints.py",
        "worker/test_checkpoint_archive.py",
        "worker/test_checkpoint_store.py",
        "worker/test_chunks.py",
        "worker/test_frameworks.py",
        "worker/test_leaving.py",
        "worker/test_object_storage.py",
        "worker/test_objectives.py",
        "worker/test_preloading.py",
        "worker/test_sampling.py",
        "worker/test_saving.py",
        "worker/test_self_test.py",
        "worker/test_supervisor.py",
    ),
}
# The fixtures whose cluster stops after the last test of a group. Only files of a group may use them.
SHARED_CLUSTERS = {"served", "broken_before", "on_spot"}
# All tests of a file with this line are system or browser tests.
WHOLE_FILE = re.compile(r"^pytestmark = \[?pytest\.mark\.(system|browser)\b", re.MULTILINE)
# The gate runs no test of a file with this line.
ALL_EXTENDED = re.compile(r"^pytestmark = .*pytest\.mark\.extended\b", re.MULTILINE)
GROUP_OF = {file: group for group, files in GROUPS.items() for file in files}
# Files that take longest. They start first, so that all workers end at about the same time.
FIRST = (
    *(file for file, group in GROUP_OF.items() if group != "browser"),
    "system/test_tutorial.py",
    "system/test_whole_cluster.py",
    "system/test_upgrade.py",
    "system/test_autoscaling.py",
    "system/test_joined_cluster.py",
    "cluster/test_head.py",
    "cluster/test_local_watch.py",
    "chaos/test_short.py",
    "training/test_under_ray_tune.py",
    "trainables/test_docs_blocks.py",
    "api/test_openapi.py",
    "simulation/test_seeds.py",
)

# Importing makes many objects, and hardly any garbage. Each worker would spend 4 s of processor time looking for it.
gc.disable()
# What a user or a CI system set for other programs must not decide the outcome: proxies, and the variables by which Typer colors help. Typer
# reads them when `typer.rich_utils` is imported, which nothing above does.
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
COLORS = ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS")
for name in list(os.environ):
    if name.startswith(("TUNER_", "RAY_", "AWS_")) or name.upper() in PROXIES or name in COLORS:
        del os.environ[name]
# The cloud that the tests run on must not decide their outcome.
os.environ["TUNER_CLOUD"] = "none"
# Several tests run at once. With one thread per core, each training would wait for the others longer than it computes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The gate runs the same examples every time, and `make core` and `make mutants` twice as many. The full run draws other ones, and six
# times as many: `examples` in tests/strategies.py.
for profile, derandomize, max_examples in (("gate", True, 50), ("core", True, 100), ("full", False, 300)):
    settings.register_profile(
        profile,
        max_examples=max_examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
# Hypothesis also draws constants that it finds in the modules imported so far. The examples would then change
# with any edit of any file and with the order of the test files, despite `derandomize` and a fixed seed.
providers._get_local_constants = lambda: providers._local_constants

# If a run is interrupted, a worker interrupts its test after 5 s, and ends 10 s later at the latest. By default, xdist kills it after 10 s,
# before it could stop a Ray cluster.
NodeManager.EXIT_TIMEOUT = 20

# Typer builds the whole command line from its functions for each call: 87 of the 100 ms of processor time of a short command.
testing._get_command = cache(testing._get_command)  # type: ignore[attr-defined]


# The two tiers


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="run everything: extended tests, all seeds and generated requests, and as many fresh ones",
    )
    parser.addoption("--seed", type=int, action="append", help="run only this seed of the seeded tests")
    parser.addoption("--fresh-seed", type=int, help="take the fresh seeds of --all from this number on")


def pytest_configure(config: pytest.Config) -> None:
    """Load the tier's Hypothesis profile and choose the first fresh seed, or take the one that xdist passes to its workers."""
    settings.load_profile(
        config.getoption("--hypothesis-profile") or ("full" if config.option.all else "gate")
    )
    if config.option.fresh_seed is None:
        passed: dict[str, int] = getattr(config, "workerinput", {})
        config.option.fresh_seed = passed.get("fresh_seed", 10**6 + secrets.randbelow(10**9))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the first fresh seed to a worker of xdist, because all workers must collect the same tests."""
    node.workerinput["fresh_seed"] = node.config.option.fresh_seed


def pytest_sessionstart(session: pytest.Session) -> None:
    """Print the first fresh seed here, because `-q` would hide a report header."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.option.all and reporter is not None:
        number = session.config.option.fresh_seed
        reporter.write_line(f"fresh seeds from {number}; to repeat: --fresh-seed {number}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without a test that the run selects, because each worker imports all files that are left, and folders in which no
    file is left, because their `conftest.py` is imported, too.
    """
    marks = config.getoption("markexpr")
    if marks not in ("system or browser", "not system and not browser"):
        return None
    files = [collection_path] if collection_path.is_file() else [*collection_path.rglob("test_*.py")]
    tests = [file for file in files if file.name.startswith("test_") and file.suffix == ".py"]
    is_all = config.getoption("--all")
    return True if tests and not any(_may_run(file.read_text(), marks, is_all) for file in tests) else None


def _may_run(text: str, marks: str, is_all: bool) -> bool:
    """Return whether a run may select a test of the file with this text.

    It selects none in a file without a system or browser test if only those tests run, in a file with no other tests if those do not
    run, and in a file with extended tests only, unless they run.
    """
    if ALL_EXTENDED.search(text) and not is_all:
        return False
    if marks == "system or browser":
        return "mark.system" in text or "mark.browser" in text
    return WHOLE_FILE.search(text) is None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that the tier does not run, and put the files that take longest first.

    Raises:
        pytest.UsageError: A test uses a shared cluster, but its file is in none of the `GROUPS`. The cluster may have been stopped before.
    """
    for item in items:
        used = SHARED_CLUSTERS.intersection(getattr(item, "fixturenames", ()))
        if used and not _group_of(item.nodeid):
            raise pytest.UsageError(f"add the file of {item.nodeid} to GROUPS: it uses {', '.join(used)}")
    if not config.getoption("--all"):
        extended = [item for item in items if item.get_closest_marker("extended")]
        if extended:
            config.hook.pytest_deselected(items=extended)
            items[:] = [item for item in items if not item.get_closest_marker("extended")]
    position = {TESTS / name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: position.get(item.path, len(FIRST)))


COLLECTED = pytest.StashKey[frozenset[str]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect garbage from here on, but only among the objects that tests make: the others live as long as the process."""
    session.config.stash[COLLECTED] = frozenset(sys.modules)
    gc.collect()
    gc.freeze()
    # Tests leave little garbage. Looking for it after every 700 new objects took 3 % of the processor time.
    gc.set_threshold(20_000)
    gc.enable()


class ByGroup(LoadFileScheduling):
    """Distribute whole files to workers, and send all files of one of the `GROUPS` to the same worker."""

    def _split_scope(self, nodeid: str) -> str:
        return _group_of(nodeid) or str(super()._split_scope(nodeid))


def _group_of(nodeid: str) -> str | None:
    """Return the group of a test's file, or None if it is in none of the `GROUPS`."""
    return GROUP_OF.get(nodeid.partition("::")[0].removeprefix("tests/"))


@pytest.hookimpl(trylast=True)  # after the fixtures of the test have ended
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the cluster that the tests of a group share after the last of them."""
    group = _group_of(item.nodeid)
    if group and not any(_group_of(other.nodeid) == group for other in _ahead(item, nextitem)):
        _stop_shared_cluster()


def _ahead(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.Item]:
    """Return the tests that this process runs after `item`, as far as it knows them. A worker of xdist knows only the next one."""
    if hasattr(item.config, "workerinput"):
        return [] if nextitem is None else [nextitem]
    return item.session.items[item.session.items.index(item) + 1 :]


def pytest_sessionfinish() -> None:
    """Stop it, too, if the run is interrupted."""
    _stop_shared_cluster()


def _stop_shared_cluster() -> None:
    from tests import clusters  # the plugin, whose assertions pytest rewrites when it loads it

    clusters.RUNNING.close()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    return ByGroup(config, log)


# External programs: @pytest.mark.needs("postgresql")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is missing. In CI the test fails instead, because nobody would notice the skip."""
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


@pytest.fixture(scope="session")
def collected_modules(pytestconfig: pytest.Config) -> frozenset[str]:
    """The names of the modules that were imported until the tests were collected."""
    return pytestconfig.stash[COLLECTED]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    from tests import fakes  # imports a service, which not every test needs

    made = fakes.database_in(tmp_path)
    yield made
    made.dispose()
