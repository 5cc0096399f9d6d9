"""Shared by all tests: a clean environment and a fresh database."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tuner.store.database import Database

TESTS = Path(__file__).parent
# Each of these takes more than ten seconds.
LONGEST = (
    "system/test_pages.py",
    "system/test_main_job.py",
    "system/test_kills.py",
    "system/test_spot_gate.py",
    "system/test_preempted.py",
    "system/test_tutorial.py",
    "system/test_control.py",
    "system/test_checkpoints.py",
    "system/test_restore.py",
    "system/test_upgrade.py",
    "system/test_whole_cluster.py",
    "training/test_under_ray_tune.py",
    "system/test_bad_user_code.py",
    "system/test_pilot.py",
    "system/test_bill.py",
    "chaos/test_short.py",
    "system/test_notebook.py",
    "system/test_joined_cluster.py",
    "system/test_autoscaling.py",
    "failpoints/test_matrix.py",
    "api/test_openapi.py",
    "engine/test_object_storage.py",
    "engine/test_self_test.py",
    "service/test_prober.py",
    "service/test_restoring.py",
    "trainables/test_docs_blocks.py",
    "engine/test_supervisor.py",
    "simulation/test_seeds.py",
    "upgrades/test_down_and_up.py",
    "simulation/test_simulated_jobs.py",
    "store/test_postgresql.py",
    "engine/test_notices_failures.py",
    "docs/test_blocks.py",
    "api/test_authorization.py",
    "packages/test_children.py",
    "simulation/test_markets.py",
    "store/test_ledger_races.py",
    "store/test_leadership.py",
    "engine/test_leaving.py",
    "engine/test_pieces.py",
    "api/test_fuzz.py",
    "api/test_listing.py",
    "contracts/test_journal_money.py",
)

for name in [name for name in os.environ if name.startswith(("TUNER_", "RAY_", "AWS_"))]:
    del os.environ[name]
# Whatever cloud the tests run on does not decide them.
os.environ["TUNER_CLOUD"] = "none"
# Several tests run at once: a program that trains, with as many threads as there are processors, would wait for them more than it reckons.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The gate runs the same examples every time; the full run draws other ones, and three times as many (`examples` in tests/strategies.py).
for profile, derandomize, max_examples in (("gate", True, 100), ("full", False, 300)):
    settings.register_profile(
        profile,
        max_examples=max_examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
# Hypothesis also draws constants that it finds in the modules imported so far. Examples would then change with any edit of any file
# and with the order of the test files, in spite of `derandomize` and of a given seed.
providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="run the full tier: extended tests, all seeds and cases, and as many fresh ones",
    )
    parser.addoption("--seed", type=int, action="append", help="run only this seed of the seeded tests")
    parser.addoption("--fresh-seed", type=int, help="take the fresh seeds of --all from this number on")


def pytest_configure(config: pytest.Config) -> None:
    """Load the tier's Hypothesis profile, and draw where fresh seeds begin. xdist hands the options on to its workers, so that all agree."""
    settings.load_profile("full" if config.option.all else "gate")
    if config.option.fresh_seed is None:
        config.option.fresh_seed = 10**6 + secrets.randbelow(10**9)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Print where the fresh seeds begin. `-q` would hide a report header."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.option.all and reporter is not None:
        number = session.config.option.fresh_seed
        reporter.write_line(f"fresh seeds from {number}; to repeat: --fresh-seed {number}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Marks select what has been imported: a run of what needs a service leaves out what has none of its marks before that, which
    takes it a quarter of the time."""
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    if "system or browser" not in config.getoption("markexpr"):
        return None
    found = collection_path.read_text()
    return None if "mark.system" in found or "mark.browser" in found else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that all workers end at about the same time."""
    place = {TESTS / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(LONGEST)))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    from tests import fakes  # not every test needs a service

    found = fakes.database_in(tmp_path)
    yield found
    found.dispose()
