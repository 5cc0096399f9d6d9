"""Shared by all tests: a clean environment and a fresh database."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tuner.store.database import Database

for name in [name for name in os.environ if name.startswith(("TUNER_", "RAY_", "AWS_"))]:
    del os.environ[name]
# Whatever cloud the tests run on does not decide them.
os.environ["TUNER_CLOUD"] = "none"
# How long an example takes does not either.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Database(f"sqlite:///{tmp_path}/tuner.db")
    found.migrate()
    yield found
    found.dispose()
