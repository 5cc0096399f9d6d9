"""All that is read over REST is answered from production's database, too."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests import fakes, postgres
from tests.fakes import FakeService, shared_app
from tests.packages.making import plain
from tuner.store.database import Database

pytestmark = pytest.mark.skipif(postgres.programs() is None, reason="this machine has no PostgreSQL")
# The stream has no end, and there is no log without a worker.
WITHOUT = ("/events", "/logs", "/log")
# What a route must be asked for, where it has no default.
ASKED = {"/v1/spend": "?by=day&by=market&by=tag:owner", "/v1/best": f"?trainable={fakes.ENTRY}&metric=acc"}


def test_every_page_of_a_job_and_of_the_service_is_answered(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    made = fakes.service_in(tmp_path)
    made.database.dispose()
    with postgres.server() as url:
        database = Database(url)
        database.migrate()
        service = FakeService(replace(made.settings, packages=True), database, now=made.now)
        client = fakes.client_of(service, own=True, raises=False)
        job = fakes.submit(client, tags={"owner": "ada"})
        fakes.simulate(service, job)
        fakes.submit(client)
        client.put("/v1/budgets/all", json={"usd": 10})
        headers = {"Content-Type": "application/zip"}
        package = client.post("/v1/packages", content=plain({"mine.py": ""}), headers=headers).json()["id"]
        paths = [path for path, does in shared_app().openapi()["paths"].items() if "get" in does]
        answers = {}
        for path in paths:
            if not path.endswith(WITHOUT):
                filled = path.format(
                    job=job, trial="trial_00000", name="all", project="default", package=package
                )
                answers[path] = client.get(filled + ASKED.get(path, ""))
        database.dispose()
    wrong = {path: answer.text[:300] for path, answer in answers.items() if answer.status_code >= 400}
    assert wrong == {}
    assert len(answers) >= 20
    assert 'tuner_jobs{state="succeeded"} 1.0' in answers["/metrics"].text
