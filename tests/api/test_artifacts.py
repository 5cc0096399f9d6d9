"""Artifacts of a trial over REST, with the client and on the command line."""

import base64
import hashlib
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.checkpoints.artifacts import TrialArtifacts
from tuner.checkpoints.storage import Storage
from tuner.cli.main import app
from tuner.client import ApiError, Client
from tuner.client.downloads import write_checked

FILES = {"plot.png": b"pixels", "page.html": b"<script>", "vector.svg": b"<svg>"}
TRIAL = "trial_00000"

service, client = fakes.fixtures("module")


@pytest.fixture(scope="module")
def job(service: FakeService, client: TestClient) -> str:
    job = fakes.submit(client)
    fakes.simulate(service, job)
    stored = TrialArtifacts(service.settings.storage, "default", job, TRIAL)
    stored.add(1, 3, FILES, at_ns=service.now(), max_files=9, max_bytes=1000)
    return job


def test_files_are_listed_and_sent_as_what_they_may_be(client: TestClient, job: str) -> None:
    path = f"/v1/jobs/{job}/trials/{TRIAL}/artifacts"
    items = client.get(path).json()["items"]
    kinds = {artifact["name"]: artifact["content_type"] for artifact in items}
    other = "application/octet-stream"
    assert kinds == {"page.html": other, "plot.png": "image/png", "vector.svg": other}
    assert {artifact["step"] for artifact in items} == {3}
    for name, content in FILES.items():
        answer = client.get(f"{path}/{name}")
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        assert answer.content == content
        assert answer.headers["content-type"] == kinds[name]
        assert answer.headers["repr-digest"] == f"sha-256=:{digest}:"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'; sandbox" in answer.headers["content-security-policy"]
        is_image = name == "plot.png"
        assert answer.headers["content-disposition"].startswith("inline" if is_image else "attachment")


def test_unknown_and_unreadable_artifacts_are_refused_with_the_reason(
    service: FakeService, client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/v1/jobs/{job}/trials"
    missing = check_problem(client.get(f"{path}/{TRIAL}/artifacts/other.png"), 404)
    assert "it has page.html, plot.png, vector.svg" in missing["detail"]
    assert "no trial" in check_problem(client.get(f"{path}/trial_99999/artifacts"), 404)["detail"]
    assert client.get(f"{path}/trial_00001/artifacts").json() == {"items": []}
    damaged = next(Path(service.settings.storage).rglob("a1-s3-plot.png"))
    damaged.write_bytes(b"PIXELS")
    assert "damaged" in check_problem(client.get(f"{path}/{TRIAL}/artifacts/plot.png"), 404)["detail"]
    damaged.write_bytes(FILES["plot.png"])
    monkeypatch.setattr(Storage, "names", lambda *_: (_ for _ in ()).throw(TimeoutError("no answer")))
    assert "no answer" in check_problem(client.get(f"{path}/{TRIAL}/artifacts"), 503)["detail"]


def test_artifacts_command_lists_and_downloads(
    client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Client("http://tuner", fakes.KEY, transport=client._transport)
    monkeypatch.setattr("tuner.client.Client", lambda: made)
    listed = CliRunner().invoke(app, ["artifacts", job, TRIAL])
    assert listed.exit_code == 0, listed.output
    assert "plot.png" in listed.output
    to = tmp_path / "plots"
    assert CliRunner().invoke(app, ["artifacts", job, TRIAL, "--to", str(to)]).exit_code == 0
    assert {path.name: path.read_bytes() for path in to.iterdir()} == FILES
    with pytest.raises(ApiError, match="does not match its digest"):
        write_checked(to, "plot.png", b"PIXELS", hashlib.sha256(b"pixels").hexdigest())
    with pytest.raises(ApiError, match="is not the name of a file"):
        write_checked(to, "../plot.png", b"", hashlib.sha256(b"").hexdigest())
