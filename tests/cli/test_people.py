"""Projects, members and keys on the command line: the JSON output equals the REST response."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.cli.conftest import Tuner
from tests.cli.test_commands import printed
from tests.fakes import FakeService
from tuner.settings import Settings

service, rest = fakes.fixtures("module")
THERE = {"Tuner-Project": "vision"}


@pytest.fixture(autouse=True)
def vision(rest: TestClient) -> None:
    rest.post("/v1/projects", json={"name": "vision"})
    rest.put("/v1/members/ada", json={"role": "submitter"}, headers=THERE)


def answer_of(rest: TestClient, path: str) -> Any:
    return rest.get(path, headers=THERE).json()


@pytest.mark.parametrize("what", ["projects", "users", "members", "keys"])
def test_list_commands_equal_the_rest_response(tuner: Tuner, rest: TestClient, what: str) -> None:
    rest.post("/v1/keys", json={"user": "ada", "name": "listed"}, headers=THERE)
    listing = printed(tuner("--project", "vision", what, "list", "--json"))
    assert listing == answer_of(rest, f"/v1/{what}")
    assert listing["items"]
    shown = tuner("--project", "vision", what, "list").stdout
    assert {"projects": "vision", "keys": "listed"}.get(what, "ada") in shown


def test_operator_works_in_the_given_project(
    tuner: Tuner, rest: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(tuner("whoami", "--json"))["project"] == "default"
    assert printed(tuner("--project", "vision", "whoami", "--json")) == answer_of(rest, "/v1/whoami")
    assert "operator, operator of vision" in tuner("--project", "vision", "whoami").stdout
    refused = tuner("--project", "nowhere", "whoami")
    assert refused.exit_code == 1
    assert "the project 'nowhere' does not exist" in refused.stderr
    monkeypatch.setenv("TUNER_PROJECT", "vision")
    assert printed(tuner("whoami", "--json"))["project"] == "vision"


def test_project_is_created_and_shown(tuner: Tuner, rest: TestClient) -> None:
    made = printed(tuner("projects", "add", "speech", "--json"))
    assert (
        made
        == printed(tuner("projects", "show", "speech", "--json"))
        == rest.get("/v1/projects/speech").json()
    )
    assert tuner("projects", "add", "speech").exit_code == 1


def test_members_are_added_changed_and_removed(tuner: Tuner, rest: TestClient) -> None:
    at = ("--project", "vision", "members")
    made = printed(tuner(*at, "set", "eve", "--role", "viewer", "--json"))
    assert made in answer_of(rest, "/v1/members")["items"]
    assert printed(tuner(*at, "set", "eve", "--role", "admin", "--json"))["role"] == "admin"
    assert tuner(*at, "remove", "eve").exit_code == 0
    assert tuner(*at, "remove", "eve").exit_code == 1
    assert "did you mean admin" in tuner(*at, "set", "eve", "--role", "admn").stderr


def test_report_on_a_job_of_another_project_finds_the_job(tuner: Tuner, rest: TestClient) -> None:
    job = rest.post("/v1/jobs", json=fakes.body(), headers=THERE).json()["id"]
    assert tuner("report", job, "--project", "vision").exit_code == 0
    assert tuner("report", job).exit_code == 1


def test_users_are_disabled_and_enabled(tuner: Tuner) -> None:
    assert printed(tuner("users", "disable", "ada", "--json"))["disabled"]
    assert not printed(tuner("users", "enable", "ada", "--json"))["disabled"]


def test_key_is_shown_when_created_or_rotated_and_gives_access(
    tuner: Tuner, rest: TestClient, service: FakeService
) -> None:
    at = ("--project", "vision", "keys")
    made = printed(tuner(*at, "make", "ada", "--name", "laptop", "--expires-in", "2d", "--json"))
    with_it = {"Authorization": f"Bearer {made['secret']}"}
    assert rest.get("/v1/whoami", headers=with_it).json()["user"] == "ada"
    shown = tuner(*at, "rotate", made["id"], "--overlap", "0s").stdout
    assert "shown only now: tnr_" in shown
    assert rest.get("/v1/whoami", headers=with_it).status_code == 401
    new = shown.rpartition("only now: ")[2].split()[0]
    assert rest.get("/v1/whoami", headers={"Authorization": f"Bearer {new}"}).json()["key"] == new[:12]
    assert tuner(*at, "revoke", new[:12]).exit_code == 0
    assert rest.get("/v1/whoami", headers={"Authorization": f"Bearer {new}"}).status_code == 401
    assert tuner(*at, "revoke", "tnr_00000000").exit_code == 1


def test_invalid_project_name_is_refused_as_a_setting() -> None:
    assert Settings.from_env({"TUNER_PROJECT": "vision"}).project == "vision"
    with pytest.raises(ValueError, match="TUNER_PROJECT"):
        Settings.from_env({"TUNER_PROJECT": "a\nb"})
    with pytest.raises(ValueError, match="a letter or digit first"):
        Settings.from_env({"TUNER_PROJECT": "-vision"})
