"""Every GET route also works on PostgreSQL."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests import fakes
from tests.fakes import FakeService, shared_app
from tests.packages.making import plain
from tuner.database.database import Database

# The event stream does not end, and there is no log without a worker.
SKIPPED = ("/events", "/logs", "/log", "/checkpoint")
#: Query parameters that a route requires.
QUERIES = {
    "/v1/spend": "?group_by=day&group_by=market&group_by=tag:owner",
    "/v1/best": f"?trainable={fakes.ENTRY}&metric=acc",
}


@pytest.mark.needs("postgresql")
def test_every_get_route_works_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    made = fakes.service_in(tmp_path)
    made.database.dispose()
    database = Database(postgres_url)
    service = FakeService(replace(made.settings, packages=True), database, now=made.now)
    client = fakes.client_of(service, own=True, raises=False)
    job = fakes.submit(client, tags={"owner": "ada"})
    fakes.simulate(service, job)
    fakes.submit(client)
    client.put("/v1/budgets/all", json={"usd": 10})
    headers = {"Content-Type": "application/zip"}
    package = client.post("/v1/packages", content=plain({"mine.py": ""}), headers=headers).json()["id"]
    answers = {}
    for path, methods in shared_app().openapi()["paths"].items():
        if "get" in methods and not path.endswith(SKIPPED):
            names = {"trial": "trial_00000", "name": "all", "project": "default", "package": package}
            filled = path.format(job=job, trainable="trainables.digits_mlp:train", **names)
            answers[path] = client.get(filled + QUERIES.get(path, ""))
    database.dispose()
    errors = {path: answer.text[:300] for path, answer in answers.items() if answer.status_code >= 400}
    assert errors == {}
    assert len(answers) >= 20
    assert 'tuner_jobs{state="succeeded"} 1.0' in answers["/metrics"].text
