"""Everything under /v1 needs the key. Health, metrics and the API documentation do not."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.api.app import create_app
from tuner.settings import Settings

OPEN = ["/healthz", "/readyz", "/docs", "/openapi.json", "/metrics"]


@pytest.fixture
def stranger(service: FakeService) -> TestClient:
    return fakes.client_of(service, with_key=False)


@pytest.mark.parametrize(
    "header",
    ["Bearer wrong", f"Basic {fakes.KEY}", fakes.KEY, "Bearer", f"Bearer {fakes.KEY}x", "Bearer é"],
)
def test_wrong_key_is_refused(stranger: TestClient, header: str) -> None:
    answer = stranger.get("/v1/jobs", headers={b"Authorization": header.encode("latin-1")})
    check_problem(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"


def test_submission_without_key_is_refused_and_creates_no_job(
    stranger: TestClient, service: FakeService
) -> None:
    check_problem(stranger.post("/v1/jobs", json=fakes.body()), 401)
    assert fakes.client_of(service).get("/v1/jobs").json()["items"] == []


@pytest.mark.parametrize("path", OPEN)
def test_health_metrics_and_docs_need_no_key(stranger: TestClient, path: str) -> None:
    assert stranger.get(path).status_code == 200


def test_service_key_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    settings = Settings.from_env({"TUNER_HOME": str(tmp_path / "home")})
    key = settings.api_key()
    assert settings.api_key() == key
    assert settings.api_key_path.read_text().strip() == key
    assert settings.api_key_path.stat().st_mode & 0o777 == 0o600
    assert len(key) > 30


def test_service_with_unreachable_cluster_is_alive_but_not_ready(service: FakeService) -> None:
    client = TestClient(create_app(service, is_ready=lambda: False))
    assert client.get("/healthz").status_code == 200
    answer = client.get("/readyz")
    check_problem(answer, 503)
    assert answer.headers["retry-after"]
