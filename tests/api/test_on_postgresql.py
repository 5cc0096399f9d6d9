"""Every GET route also works on PostgreSQL."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests import fakes
from tests.fakes import FakeService, shared_app
from tests.packages.making import plain
from tuner.database.database import Database
from tuner.domain.time import NS
from tuner.service.storage_lifecycle import StorageLifecycle

# The event stream does not end, and there are no files without a worker.
SKIPPED = ("/events", "/logs", "/log", "/checkpoint", "/artifacts/{artifact}", "/variants/{variant}")
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
    job = fakes.submit(client, tags={"owner": "ada"}, artifacts={"retain": "best"})
    fakes.simulate(service, job)
    elapsed_ns = 0
    lifecycle = StorageLifecycle(service, lambda: elapsed_ns)
    for _ in range(2):
        service.now.pass_s(24 * 3600)
        elapsed_ns += 24 * 3600 * NS
        lifecycle.one_pass()
    fakes.submit(client)
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.1}})
    assert client.post(f"/v1/jobs/{job}/exports", json={}).status_code == 202
    client.put("/v1/budgets/all", json={"usd": 10})
    headers = {"Content-Type": "application/zip"}
    package = client.post("/v1/packages", content=plain({"mine.py": ""}), headers=headers).json()["id"]
    answers = {}
    for path, methods in shared_app().openapi()["paths"].items():
        if "get" in methods and not path.endswith(SKIPPED):
            names = {
                "trial": "trial_00000",
                "name": "all",
                "project": "default",
                "package": package,
                "export": "export_00001",
            }
            filled = path.format(job=job, trainable="trainables.digits_mlp:train", **names)
            answers[path] = client.get(filled + QUERIES.get(path, ""))
    database.dispose()
    errors = {path: answer.text[:300] for path, answer in answers.items() if answer.status_code >= 400}
    assert errors == {}
    assert answers["/v1/jobs/{job}/best"].json()["checkpoint"] is not None
    assert [entry["action"] for entry in answers["/v1/audit"].json()["items"]].count("artifacts.delete") == 1
    assert len(answers) >= 20
    assert 'tuner_jobs{state="succeeded"} 1.0' in answers["/metrics"].text
