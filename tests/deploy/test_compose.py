"""Docker Compose accepts the file, its services start in a working order, and it matches the code."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import postgres
from tests.deploy.files import DEPLOY, ROOT, labels_of
from tools.checks.blocks import blocks, commands
from tuner.cluster import nodes as its
from tuner.settings import Settings

FILE = DEPLOY / "compose/compose.yaml"
ONE_SHOT = {"migrate", "bucket"}
OURS = {"tuner", "migrate", "bucket", "ray-head", "worker", "spot-worker"}


def config(*words: str, env: Path | None, file: Path = FILE) -> "subprocess.CompletedProcess[str]":
    """Run `docker compose config`, which reads and checks the file as `up` does but needs no engine."""
    given = ["--env-file", str(env)] if env else ["--env-file", "/dev/null"]
    program = Path(sys.executable).parent / "docker-compose"
    return subprocess.run(
        [program, "--file", file, *given, "config", *words],
        capture_output=True,
        text=True,
        check=False,
        env={},
    )


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the .env file that secrets.sh writes."""
    folder = tmp_path_factory.mktemp("compose")
    shutil.copy(DEPLOY / "compose/secrets.sh", folder)
    subprocess.run([folder / "secrets.sh"], check=True, capture_output=True)
    assert (folder / ".env").stat().st_mode & 0o777 == 0o600
    before = (folder / ".env").read_text()
    subprocess.run([folder / "secrets.sh"], check=True, capture_output=True)
    assert (folder / ".env").read_text() == before, "a second call would lock everybody out"
    return folder / ".env"


@pytest.fixture(scope="module")
def values(secrets: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in secrets.read_text().splitlines())


@pytest.fixture(scope="module")
def project(secrets: Path) -> dict[str, Any]:
    completed = config("--format=json", env=secrets)
    assert completed.returncode == 0, completed.stderr
    return dict(json.loads(completed.stdout))


@pytest.fixture(scope="module")
def services(project: dict[str, Any]) -> dict[str, Any]:
    return dict(project["services"])


def test_compose_accepts_the_file_without_warnings(secrets: Path) -> None:
    completed = config("--quiet", env=secrets)
    assert (completed.returncode, completed.stderr) == (0, "")


def test_compose_reports_an_unknown_key(secrets: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text().replace("    healthcheck: *ray-health", "    healthchek: *ray-health"))
    completed = config("--quiet", env=secrets, file=wrong)
    assert completed.returncode != 0
    assert "healthchek" in completed.stderr


def test_missing_secrets_prevent_the_start_and_the_error_names_the_script() -> None:
    completed = config("--quiet", env=None)
    assert completed.returncode != 0
    assert "run ./secrets.sh first" in completed.stderr


def test_changed_values_reach_their_services(secrets: Path, tmp_path: Path) -> None:
    env = tmp_path / ".env"
    other = {
        "WORKERS": "3",
        "SPOT_WORKERS": "0",
        "WORKER_CPUS": "16",
        "TUNER_VARIANT": "cuda",
        "TUNER_EXTRAS": "s3",
        "TUNER_OPTUNA_STORAGE": "postgresql://tuner@database/optuna",
    }
    env.write_text(secrets.read_text() + "".join(f"{name}={setting}\n" for name, setting in other.items()))
    changed_services = json.loads(config("--format=json", env=env).stdout)["services"]
    assert changed_services["worker"]["deploy"]["replicas"] == 3
    assert changed_services["spot-worker"]["deploy"]["replicas"] == 0
    assert "--num-cpus=16" in changed_services["worker"]["command"]
    assert changed_services["worker"]["build"]["args"] == {"VARIANT": "cuda", "EXTRAS": "s3"}
    mirror = changed_services["tuner"]["environment"]["TUNER_OPTUNA_STORAGE"]
    assert mirror == "postgresql://tuner@database/optuna"


def test_image_has_the_extras_of_the_dockerfile_by_default(services: dict[str, Any]) -> None:
    args = re.findall(r"^ARG (\w+)=(\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert services["tuner"]["build"]["args"] == dict(args)


def test_services_wait_until_their_dependencies_are_healthy_or_completed(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if needed in ONE_SHOT else "service_healthy"
            assert how["condition"] == wanted, (name, needed)
        if name in ONE_SHOT:
            assert service["restart"] == "no"
            assert service["healthcheck"] == {"disable": True}
        else:
            assert service["restart"] == "unless-stopped", name
            assert name == "tuner" or service["healthcheck"]["test"][0] == "CMD", (
                "the service's is the image's"
            )


def test_only_page_and_grafana_are_published_and_only_on_loopback(
    project: dict[str, Any], services: dict[str, Any]
) -> None:
    port = Settings.from_env({}).port
    reached = {
        name: [(port["host_ip"], int(port["published"]), port["target"]) for port in service["ports"]]
        for name, service in services.items()
        if "ports" in service
    }
    assert reached == {"tuner": [("127.0.0.1", port, port)], "grafana": [("127.0.0.1", 3000, 3000)]}
    assert project["networks"]["inside"]["internal"] is True
    assert all("inside" in service["networks"] for service in services.values())


def test_service_settings_match_the_other_containers(
    services: dict[str, Any], values: dict[str, str], tmp_path: Path
) -> None:
    env = services["tuner"]["environment"]
    url = tmp_path / "database_url"
    url.write_text(values["TUNER_DATABASE_URL"])
    assert env["TUNER_DATABASE_URL_FILE"] == "/run/secrets/database_url"
    settings = Settings.from_env({**env, "TUNER_DATABASE_URL_FILE": str(url)})
    head = services["ray-head"]
    assert settings.ray_address == "http://ray-head:8265"
    assert "--dashboard-port=8265" in head["command"]
    assert settings.database_url.endswith(f":{values['POSTGRES_PASSWORD']}@database:5432/tuner")
    assert settings.storage.startswith("s3://tuner/")
    assert not settings.optuna_storage, "a file in the container would be lost with it"
    assert "'tuner'" in services["bucket"]["command"][2], "the bucket that is made"
    for name in ("tuner", "migrate", "ray-head"):
        mounted = [(secret["source"], secret["target"]) for secret in services[name]["secrets"]]
        assert mounted == [("database_url", "/run/secrets/database_url")], "drivers read the same file"
    (key,) = services["prometheus"]["secrets"]
    assert (key["source"], key["target"]) == ("api_key", "/run/secrets/api_key"), "Prometheus reads it"


def test_every_ray_node_has_token_storage_market_and_price(
    services: dict[str, Any],
) -> None:
    env = services["ray-head"]["environment"]
    assert env["RAY_AUTH_MODE"] == "token"
    assert env["AWS_ENDPOINT_URL"] == "http://storage:9000"
    markets = {}
    for name in ("worker", "spot-worker"):
        service = services[name]
        assert service["environment"] == env
        assert "--address=ray-head:6379" in service["command"]
        labels = labels_of(service["command"][-1])
        assert its.usd_per_hour(labels)
        assert its.instance_type_of(labels) != its.LOCAL
        markets[name] = its.market_of(labels)
    assert markets == {"worker": "on_demand", "spot-worker": "spot"}
    assert "--num-cpus=0" in services["ray-head"]["command"], "no trial runs next to the drivers"


def test_images_have_versions_and_postgresql_matches_the_tests(services: dict[str, Any]) -> None:
    for name, service in services.items():
        image, _, tag = service["image"].rpartition(":")
        assert image, name
        assert tag not in ("", "latest"), name
        assert (service.get("build") is not None) == (name in OURS)
    major = services["database"]["image"].split(":")[1].split("-")[0]
    if (programs := postgres.programs()) is not None:
        completed = subprocess.run(
            [programs / "postgres", "--version"], capture_output=True, text=True, check=True
        )
        assert f" {major}." in completed.stdout


def test_mounted_files_exist(services: dict[str, Any]) -> None:
    mounts = [
        v["source"]
        for service in services.values()
        for v in service.get("volumes", [])
        if v["type"] == "bind"
    ]
    assert len(mounts) == 4
    for path in mounts:
        assert Path(path).exists(), path


def test_documented_backup_and_restore_use_existing_services_and_the_mounted_folder(
    services: dict[str, Any],
) -> None:
    lines = [
        shlex.split(line)[2:]
        for block in blocks(ROOT / "docs/backup.md")
        for line in commands(block)
        if line.startswith("docker compose ")
    ]
    assert {words[0] for words in lines} == {"run", "stop", "restart", "start", "exec"}
    for verb, *words in lines:
        if verb == "run":
            (_, folder) = words[words.index("--volume") + 1].split(":")
            words = words[words.index("--volume") + 2 :]
            program, command, file, *_ = words[1:]
            assert (program, command in ("backup", "restore")) == ("tuner", True)
            assert Path(file).parent == Path(folder)
            assert {"TUNER_STORAGE", "TUNER_DATABASE_URL_FILE"} <= services[words[0]]["environment"].keys()
        assert words[0] in services
