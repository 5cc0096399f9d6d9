"""The Compose file is one by the specification, starts in an order that works, and fits the code."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compose_spec import PyCompose

from tests import postgres
from tests.deploy.files import DEPLOY, compose, interpolated, labels_of
from tuner.engine.ray_cluster import labels as its
from tuner.settings import Settings

ONE_SHOT = {"migrate", "bucket"}
OURS = {"tuner", "migrate", "bucket", "ray-head", "worker", "spot-worker"}


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What secrets.sh makes."""
    folder = tmp_path_factory.mktemp("compose")
    shutil.copy(DEPLOY / "compose/secrets.sh", folder)
    subprocess.run([folder / "secrets.sh"], check=True, capture_output=True)
    assert (folder / ".env").stat().st_mode & 0o777 == 0o600
    before = (folder / ".env").read_text()
    subprocess.run([folder / "secrets.sh"], check=True, capture_output=True)
    assert (folder / ".env").read_text() == before, "a second call would lock everybody out"
    return dict(line.split("=", 1) for line in before.splitlines())


@pytest.fixture(scope="module")
def project(secrets: dict[str, str]) -> dict[str, Any]:
    return dict(interpolated(compose(), secrets))


@pytest.fixture(scope="module")
def services(project: dict[str, Any]) -> dict[str, Any]:
    return dict(project["services"])


def test_it_is_a_compose_file_by_the_specification(project: dict[str, Any]) -> None:
    assert set(PyCompose.from_json(json.dumps(project)).service_names()) == set(project["services"])


def test_what_the_specification_does_not_have_is_found(project: dict[str, Any]) -> None:
    wrong = {**project, "services": {"tuner": {"image": "tuner:1", "healthchek": {}}}}
    with pytest.raises(ValueError, match="healthchek"):
        PyCompose.from_json(json.dumps(wrong))


def test_without_its_secrets_it_does_not_start() -> None:
    with pytest.raises(KeyError):
        interpolated(compose(), {})


def test_every_service_is_waited_for_until_it_is_what_it_is_waited_for(services: dict[str, Any]) -> None:
    for name, one in services.items():
        for needed, how in one.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if needed in ONE_SHOT else "service_healthy"
            assert how["condition"] == wanted, (name, needed)
        if name in ONE_SHOT:
            assert one["restart"] == "no"
            assert one["healthcheck"] == {"disable": True}
        else:
            assert one["restart"] == "unless-stopped", name
            assert name == "tuner" or one["healthcheck"]["test"][0] == "CMD", "the service's is the image's"


def test_only_the_page_and_grafana_are_reached_and_only_from_this_machine(
    project: dict[str, Any], services: dict[str, Any]
) -> None:
    port = Settings.from_env({}).port
    assert {name: one["ports"] for name, one in services.items() if "ports" in one} == {
        "tuner": [f"127.0.0.1:{port}:{port}"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    assert project["networks"]["inside"] == {"internal": True}
    assert all("inside" in one["networks"] for one in services.values())


def test_the_service_takes_its_settings(
    services: dict[str, Any], secrets: dict[str, str], tmp_path: Path
) -> None:
    env = services["tuner"]["environment"]
    url = tmp_path / "database_url"
    url.write_text(secrets["TUNER_DATABASE_URL"])
    assert env["TUNER_DATABASE_URL_FILE"] == "/run/secrets/database_url"
    settings = Settings.from_env({**env, "TUNER_DATABASE_URL_FILE": str(url)})
    head = services["ray-head"]
    assert settings.ray_address == "http://ray-head:8265"
    assert "--dashboard-port=8265" in head["command"]
    assert settings.database_url.endswith(f":{secrets['POSTGRES_PASSWORD']}@database:5432/tuner")
    assert settings.storage.startswith("s3://tuner/")
    assert "'tuner'" in services["bucket"]["command"][2], "the bucket that is made"
    for name in ("tuner", "migrate", "ray-head"):
        assert services[name]["secrets"] == ["database_url"], "drivers read the same file on the head"


def test_every_ray_node_has_the_token_the_storage_and_a_market_with_its_price(
    services: dict[str, Any],
) -> None:
    env = services["ray-head"]["environment"]
    assert env["RAY_AUTH_MODE"] == "token"
    assert env["AWS_ENDPOINT_URL"] == "http://storage:9000"
    found = {}
    for name in ("worker", "spot-worker"):
        one = services[name]
        assert one["environment"] == env
        assert "--address=ray-head:6379" in one["command"]
        labels = labels_of(one["command"][-1])
        assert its.usd_per_hour(labels)
        assert its.instance_type_of(labels) != its.LOCAL
        found[name] = its.market_of(labels)
    assert found == {"worker": "on_demand", "spot-worker": "spot"}
    assert "--num-cpus=0" in services["ray-head"]["command"], "no trial beside the drivers"


def test_images_have_versions_and_postgresql_is_the_one_that_the_tests_use(services: dict[str, Any]) -> None:
    for name, one in services.items():
        image, _, tag = one["image"].rpartition(":")
        assert image, name
        assert tag not in ("", "latest"), name
        assert (one.get("build") is not None) == (name in OURS)
    major = services["database"]["image"].split(":")[1].split("-")[0]
    if (programs := postgres.programs()) is not None:
        said = subprocess.run(
            [programs / "postgres", "--version"], capture_output=True, text=True, check=True
        )
        assert f" {major}." in said.stdout


def test_files_that_are_mounted_are_there(services: dict[str, Any]) -> None:
    mounted = [v.split(":")[0] for one in services.values() for v in one.get("volumes", []) if v[0] == "."]
    assert len(mounted) == 4
    for path in mounted:
        assert (DEPLOY / "compose" / path).resolve().exists(), path
