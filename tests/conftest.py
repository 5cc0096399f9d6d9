"""Shared by all tests: a clean environment and a fresh database."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tuner.store.database import Database

pytest_plugins = ("tests.postgres",)
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
    "api/test_openapi_half.py",
    "engine/test_object_storage.py",
    "engine/test_self_test.py",
    "service/test_prober.py",
    "service/test_restoring.py",
    "trainables/test_docs_blocks.py",
    "engine/test_supervisor.py",
    "simulation/test_thousand_seeds.py",
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
# How long an example takes, or is looked for, does not either.
settings.register_profile("without deadlines", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("without deadlines")


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
