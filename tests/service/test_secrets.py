"""Planted secrets appear in no response, log, metric or plain database column, and reach Ray only as its password."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.budgeting import spend
from tests.fakes import FakeService
from tests.listening import listening
from tests.service.ray_head import Head
from tuner.database.database import Database
from tuner.domain.errors import TunerError
from tuner.service.cluster import RayCluster, driver_env
from tuner.service.controller import Controller
from tuner.service.doctor import examine
from tuner.service.mirroring import _configured
from tuner.service.reconciler import Reconciler

(service, _) = fakes.fixtures("function")

API_KEY = "planted_api_key_0123456789"
PASSWORD = "planted_database_password"
TOKEN = "planted_ray_token"
CLOUD = "planted_cloud_secret"
MIRROR = "planted_mirror_password"
PLANTED = (API_KEY, PASSWORD, TOKEN, CLOUD, MIRROR)


@pytest.fixture
def head() -> Iterator[Head]:
    with listening(Head()) as ray_head:
        ray_head.token = TOKEN
        yield ray_head


@pytest.fixture
def planted(service: FakeService, head: Head, monkeypatch: pytest.MonkeyPatch) -> FakeService:
    """A service whose settings are full of secrets. The configured database does not exist."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CLOUD)
    for name in ("TOKEN", "DB_PASSWORD", "HUB_API_KEY", "wandb_api_key"):
        monkeypatch.setenv(f"TUNER_USER_{name}", CLOUD)
    settings = replace(
        service.settings,
        given_api_key=API_KEY,
        ray_address=head.url,
        database_url=f"postgresql://tuner:{PASSWORD}@127.0.0.1:9/tuner",
        optuna_storage=f"postgresql://tuner:{MIRROR}@127.0.0.1:9/optuna",
        webhook_hosts=("127.0.0.1",),
    )
    return replace(service, settings=settings, cluster=RayCluster(settings))  # type: ignore[arg-type]


def key_of_a_user(client: TestClient) -> str:
    """Return a key: `tnr_`, its id, and from the 14th character on the secret part."""
    client.put("/v1/members/ana", json={"role": "admin"})
    made = client.post("/v1/keys", json={"user": "ana", "name": "laptop", "expires_in": "30d"})
    assert made.status_code == 201, made.text
    return str(made.json()["secret"])


def everything_shown(client: TestClient, job: str, *keys: str) -> list[str]:
    """Return the response of each GET route with each key."""
    shown, app = [], client.app
    for path in app.openapi()["paths"]:  # type: ignore[attr-defined]
        filled = path.replace("{job}", job).replace("{trial}", "trial_00000").replace("{name}", "vision")
        if path.endswith("/events"):
            continue
        for key in keys:
            answer = client.get(filled, headers={"Authorization": f"Bearer {key}"})
            shown.append(f"{filled} {answer.status_code} {dict(answer.headers)} {answer.text}")
    return shown


def test_no_secret_appears_in_responses_logs_or_files(
    planted: FakeService, head: Head, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client = TestClient(fakes.app_of(planted), raise_server_exceptions=False)
    client.headers["Authorization"] = f"Bearer {API_KEY}"
    alerts = [{"at": 0.5, "url": "http://127.0.0.1:9/hook"}]
    made = client.put("/v1/budgets/vision", json={"usd": 0.0005, "alerts": alerts})
    webhook = made.json()["webhook_secret"]
    assert webhook
    users = key_of_a_user(client)
    written = [client.put("/v1/budgets/vision", json={"usd": 0.0005, "alerts": alerts}).text]
    spend(planted, client, 0.0003)
    Reconciler(planted).one_pass()
    job = fakes.submit(client)
    for head.status in (200, 500, 401):
        planted.now.pass_s(5)
        with suppress(TunerError):
            Controller(planted).one_pass()
        written += everything_shown(client, job, API_KEY, users)
    written += everything_shown(client, job, "wrong", "")
    driver = next(given for given in head.given if "tuner.service.driver" in given)
    assert "TUNER_DATABASE_URL_FILE" in driver, "the password goes by a file"

    written += head.given
    written += [repr(planted.settings), repr(planted.cluster.dashboard_access()), repr(planted)]
    written += [str(examine(planted.settings))]
    database = Database(planted.settings.database_url)
    with pytest.raises(TunerError) as refused:
        database.revision()
    database.dispose()
    written += [repr(refused.value), refused.value.detail]
    with pytest.raises(Exception, match=r".") as unopened:
        _configured(planted)["optuna"]()
    written += [str(unopened.value)]
    written += [caplog.text, *(str(record.__dict__) for record in caplog.records)]
    for file in planted.settings.home.rglob("*"):
        if file.is_file() and not file.name.startswith("tuner.db"):
            written.append(file.read_bytes().decode(errors="replace"))

    assert len(written) > 100
    text = "\n".join(written)
    assert [secret for secret in (*PLANTED, webhook, users[13:56]) if secret in text] == []
    assert any("delivered" in line or "pending" in line for line in written), "a webhook was tried"


def test_password_among_the_parameters_of_the_database_url_is_secret(planted: FakeService) -> None:
    url = f"postgresql:///tuner?host=127.0.0.1&port=9&user=tuner&password={PASSWORD}"
    settings = replace(planted.settings, database_url=url)
    text = f"{examine(settings)} {driver_env(settings, {})} {settings!r}"
    assert "port=9&user=tuner" in text
    assert PASSWORD not in text


def test_database_stores_only_the_webhook_secret_in_plain_text(planted: FakeService) -> None:
    """The webhook secret is kept because messages are signed with it."""
    client = TestClient(fakes.app_of(planted), headers={"Authorization": f"Bearer {API_KEY}"})
    webhook = client.put("/v1/budgets/vision", json={"usd": 1}).json()["webhook_secret"]
    users = key_of_a_user(client)
    client.headers["Authorization"] = f"Bearer {users}"
    fakes.submit(client)
    kept = b"".join(file.read_bytes() for file in planted.settings.home.glob("tuner.db*"))
    assert webhook.encode() in kept
    assert [secret for secret in (*PLANTED, users[13:56]) if secret.encode() in kept] == []
