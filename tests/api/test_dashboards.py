"""optuna-dashboard behind the service: needs the key, is read-only, and shows the recorded studies."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import KEY, FakeService
from tests.mirrors.following import mirror_all
from tuner.api.auth import LASTS_S
from tuner.mirrors.optuna import OptunaMirror

SPACE = {
    "lr": {"type": "float", "low": 0.0001, "high": 1.0, "log": True},
    "width": {"type": "int", "low": 8, "high": 64},
}


class Shown:
    """A service whose Optuna dashboard shows a finished job, with a client that has the key."""

    def __init__(self, home: Path) -> None:
        made = fakes.service_in(home)
        url = f"sqlite:///{home}/optuna.db"
        self.service: FakeService = replace(made, settings=replace(made.settings, optuna_storage=url))
        self.keyed = fakes.client_of(self.service, own=True)
        self.job = fakes.submit(
            self.keyed, search_space=SPACE, tags={"owner": "alice"}, budget={"usd": 0.003}
        )
        fakes.simulate(self.service, self.job)
        mirror_all(self.service, lambda: OptunaMirror(url))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    dashboards = Shown(tmp_path_factory.mktemp("shown"))
    yield dashboards
    dashboards.service.database.dispose()


@pytest.fixture
def browser(shown: Shown) -> TestClient:
    """Return a client without key and cookies."""
    return TestClient(shown.keyed.app, base_url="http://testserver")


def let_in(browser: TestClient) -> None:
    answer = browser.post("/v1/session", headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/optuna" in cookie


def test_dashboard_link_of_a_job_opens_its_study(shown: Shown, browser: TestClient) -> None:
    link = shown.keyed.get(f"/v1/jobs/{shown.job}").json()["links"]["optuna_dashboard"]
    let_in(browser)
    page = browser.get(link)
    assert page.status_code == 200
    assert page.url.path.startswith("/optuna/dashboard/studies/")
    assert "/optuna/static/bundle.js" in page.text


def test_dashboard_shows_study_trials_and_importances(shown: Shown, browser: TestClient) -> None:
    let_in(browser)
    (study,) = browser.get("/optuna/api/studies").json()["study_summaries"]
    assert study["study_name"] == f"digits {shown.job}"
    detail = browser.get(f"/optuna/api/studies/{study['study_id']}").json()
    recorded = shown.keyed.get(f"/v1/jobs/{shown.job}/trials", params={"limit": 500}).json()["items"]
    assert len(detail["trials"]) == len(recorded)
    ((first, second),) = browser.get(f"/optuna/api/studies/{study['study_id']}/param_importances").json()[
        "param_importances"
    ]
    assert {first["name"], second["name"]} == {"lr", "width"}
    assert first["importance"] + second["importance"] == pytest.approx(1)


def test_dashboard_script_uses_the_path_prefix(browser: TestClient) -> None:
    let_in(browser)
    script = browser.get("/optuna/static/bundle.js").text
    assert 'url_prefix:"/optuna/dashboard"' in script
    assert "`/optuna/api/studies`" in script
    assert "`${this.baseURL}/api" not in script


def test_dashboard_without_key_is_refused_with_instructions(shown: Shown, browser: TestClient) -> None:
    for path in ("", "/dashboard", "/api/studies", "/static/bundle.js", f"/jobs/{shown.job}"):
        answer = browser.get(f"/optuna{path}")
        assert answer.status_code == 401, path
        assert answer.headers["content-type"] == "application/problem+json"
        assert "/v1/session" in answer.json()["detail"]
    page = browser.get("/optuna/dashboard", headers={"Accept": "text/html"})
    assert page.status_code == 401
    assert "<h1>The key is missing</h1>" in page.text
    assert '<a href="/">the web page</a>' in page.text
    assert browser.post("/v1/session").status_code == 401
    assert browser.get("/optuna/api/studies", headers={"Authorization": "Bearer tk_wrong"}).status_code == 401
    assert browser.get("/optuna/api/studies", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


def test_session_cookie_expires_and_cannot_be_forged(shown: Shown, browser: TestClient) -> None:
    let_in(browser)
    good = str(browser.cookies.get("tuner_session", path="/optuna"))
    ends, _, mark = good.partition(".")
    browser.cookies.clear()
    for bad in (
        f"{int(ends) + 1}.{mark}",
        f"{ends}.{'0' * 64}",
        f"{ends}.",
        "",
        "x",
        f"-1.{mark}",
        f"²{ends}.{mark}",
    ):
        answer = browser.get("/optuna/api/studies", headers=[(b"cookie", f"tuner_session={bad}".encode())])
        assert answer.status_code == 401, bad
    headers = {"Cookie": f"tuner_session={good}"}
    assert browser.get("/optuna/api/studies", headers=headers).status_code == 200
    shown.service.now.pass_s(LASTS_S + 1)
    assert browser.get("/optuna/api/studies", headers=headers).status_code == 401
    assert browser.get("/v1/jobs", headers=headers).status_code == 401


def test_dashboard_is_read_only(shown: Shown, browser: TestClient) -> None:
    let_in(browser)
    body = {"study_name": "mine", "directions": ["minimize"]}
    assert browser.post("/optuna/api/studies", json=body).status_code == 405
    assert browser.delete("/optuna/api/studies/1").status_code == 405
    assert browser.put("/optuna/api/studies/1/note", json={}).status_code == 405
    assert len(browser.get("/optuna/api/studies").json()["study_summaries"]) == 1


def test_dashboard_of_unmirrored_or_unknown_job_is_404(shown: Shown, browser: TestClient) -> None:
    let_in(browser)
    waiting = fakes.submit(shown.keyed)
    assert browser.get(f"/optuna/jobs/{waiting}").status_code == 404
    assert browser.get("/optuna/jobs/job_none").status_code == 404


def test_disabled_dashboard_has_no_link(tmp_path: Path) -> None:
    service = fakes.service_in(tmp_path)
    client = fakes.client_of(service, own=True)
    job = fakes.submit(client)
    assert client.get(f"/v1/jobs/{job}").json()["links"]["optuna_dashboard"] is None
    assert client.get("/optuna/dashboard").status_code == 404
    service.database.dispose()


def test_unreachable_optuna_storage_is_503(tmp_path: Path) -> None:
    made = fakes.service_in(tmp_path)
    settings = replace(made.settings, optuna_storage=f"sqlite:///{tmp_path}/none/optuna.db")
    service: FakeService = replace(made, settings=settings)
    answer = fakes.client_of(service, own=True).get("/optuna/api/studies")
    assert answer.status_code == 503
    service.database.dispose()
