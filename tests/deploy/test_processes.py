"""The deployment without containers follows the Compose file, and reports errors before it starts anything."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.processes import __main__ as command
from deploy.processes import checks, parts
from deploy.processes.compose import FILE, Project, Refused
from deploy.processes.folder import Folder
from deploy.processes.manager import Failed, ProcessManager
from deploy.processes.parts import Part
from deploy.processes.probes import Answers, Succeeds
from tests.deploy.files import ROOT
from tuner.cluster.processes import MARK

# The deployment runs them, and is refused without them.
pytestmark = [pytest.mark.needs("postgresql"), pytest.mark.needs("prometheus")]
NETWORK = "127.91.7"
SECRETS = {
    "TUNER_API_KEY": "tk_1",
    "RAY_AUTH_TOKEN": "2",
    "POSTGRES_PASSWORD": "33",
    "TUNER_DATABASE_URL": "postgresql://tuner:33@database:5432/tuner",
    "STORAGE_PASSWORD": "4",
    "GRAFANA_PASSWORD": "5",
    "REPLICAS": "2",
}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the services as Docker Compose reads them."""
    given = tmp_path_factory.mktemp("env") / ".env"
    given.write_text("".join(f"{name}={text}\n" for name, text in SECRETS.items()))
    completed = subprocess.run(
        [
            Path(sys.executable).parent / "docker-compose",
            f"--file={FILE}",
            f"--env-file={given}",
            "config",
            "--format=json",
        ],
        env={},
        capture_output=True,
        check=True,
    )
    return dict(json.loads(completed.stdout)["services"])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    state_folder = Folder(tmp_path / "state")
    with state_folder.locked():
        state_folder.create()
        yield state_folder
        state_folder.clear()
        state_folder.unlock()
    assert not state_folder.path.exists()


def project(**values: str) -> Project:
    return Project({**SECRETS, **values}, NETWORK, moved={("ray-head", 6379): 6390})


@pytest.fixture
def all_parts(folder: Folder) -> dict[str, Part]:
    return {part.name: part for part in parts.parts_of(project(), folder)}


def with_names(word: str, address: str) -> str:
    return word.replace("127.91.7.41:6390", "ray-head:6379").replace(address, "0.0.0.0")


def test_every_part_runs_its_compose_command_at_its_own_address(
    all_parts: dict[str, Part], services: dict[str, Any]
) -> None:
    assert {part.service for part in all_parts.values()} == set(services) - {"grafana"}
    assert [name for name in all_parts if name.startswith("tuner")] == ["tuner-1", "tuner-2"]
    assert len({part.address for part in all_parts.values()}) == len(all_parts)
    for name in ("ray-head", "worker", "spot-worker", "bucket", "migrate"):
        words = [with_names(word, all_parts[name].address) for word in all_parts[name].words]
        given = services[name]["command"]
        assert words[: len(given)] == given, "what one machine needs comes behind"
    for part in all_parts.values():
        assert set(services[part.service].get("depends_on", {})) == set(part.needs)


def test_every_part_has_the_environment_of_its_compose_service(
    all_parts: dict[str, Part], services: dict[str, Any]
) -> None:
    for part in all_parts.values():
        for key, text in services[part.service].get("environment", {}).items():
            is_a_place = text.startswith("/") or any(f"{name}:" in text for name in services)
            assert is_a_place or part.environment[key] == text, (part.name, key)


def test_host_names_become_addresses_and_paths_become_local_folders(
    all_parts: dict[str, Part], folder: Folder
) -> None:
    env = all_parts["tuner-2"].environment
    assert env["TUNER_RAY_ADDRESS"] == "http://127.91.7.41:8265"
    assert env["AWS_ENDPOINT_URL"] == all_parts["spot-worker"].environment["AWS_ENDPOINT_URL"]
    assert env["AWS_ENDPOINT_URL"] == "http://127.91.7.81:9000"
    assert env["TUNER_HOST"] == "127.91.7.12"
    assert env["TUNER_HOME"] != all_parts["tuner-1"].environment["TUNER_HOME"]
    assert env["TUNER_DATABASE_URL_FILE"] == str(folder.secrets / "database_url")
    assert all_parts["tuner-2"].probe == Answers("http://127.91.7.12:8000/healthz")
    assert isinstance(all_parts["database"].probe, Succeeds)
    assert project().at_addresses(SECRETS["TUNER_DATABASE_URL"]) == (
        "postgresql://tuner:33@127.91.7.71:5432/tuner"
    )


def test_restarted_ray_node_gets_new_ports(all_parts: dict[str, Part]) -> None:
    """The ports of the previous start may have been the reason that it failed."""
    worker = all_parts["worker"]
    assert worker.renewed is not None
    again = worker.renewed()
    assert again.words != worker.words
    assert again.probe != worker.probe
    assert (again.name, again.address, again.needs) == (worker.name, worker.address, worker.needs)


def test_prometheus_scrapes_every_replica_by_address(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    config = parts.scraped((ROOT / "deploy/prometheus/compose.yml").read_text(), project(), secrets)
    assert f"credentials_file: {secrets}/api_key" in config
    assert "127.91.7.11:8000" in config
    assert "127.91.7.12:8000" in config
    assert "dns_sd" not in config


def test_number_of_worker_parts_follows_the_settings(folder: Folder) -> None:
    names = [part.name for part in parts.parts_of(project(WORKERS="2", SPOT_WORKERS="0"), folder)]
    assert "worker-2" in names
    assert "spot-worker" not in names


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"WORKERS": "many"}, "replicas is 'many' for worker: give a whole number"),
        ({"STORAGE_PASSWORD": ""}, "secrets.sh"),
    ],
)
def test_invalid_values_are_refused(values: dict[str, str], says: str) -> None:
    with pytest.raises(Refused, match=says):
        project(**values)


def test_missing_programs_are_reported_with_install_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(checks.faults_of_machine()) == []
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(checks, "postgres_programs", lambda: None)
    monkeypatch.setattr(checks, "MODULES", {"no_such_module": "dev"})
    faults = "\n".join(checks.faults_of_machine())
    for fix in (
        "apt install prometheus",
        "apt install postgresql",
        "pip install -c constraints.txt -e '.[dev]'",
    ):
        assert fix in faults


@pytest.mark.parametrize("network", ["127.0.0", "10.0.0", "127.77", "127.77.300", "127.77.0.1"])
def test_network_outside_loopback_is_refused(network: str) -> None:
    assert list(checks.faults_of_network(network))
    assert not list(checks.faults_of_network(NETWORK))


def test_port_in_use_is_reported_with_the_option_that_changes_it(all_parts: dict[str, Part]) -> None:
    with socket.socket() as taken, socket.socket() as ray:
        taken.bind((all_parts["storage"].address, 9000))
        ray.bind(("0.0.0.0", 0))
        for listener in (taken, ray):
            listener.listen()
        port = ray.getsockname()[1]
        faults = list(checks.faults_of_places([all_parts["storage"]], port))
    assert ["127.91.7.81:9000 (Address already in use)" in fault for fault in faults] == [True, False]
    assert f"port {port}" in faults[1]
    assert "--network" in faults[0]
    assert "--ray-port" in faults[1]


def test_foreign_or_outdated_state_folder_is_refused_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, old = tmp_path / "theirs", tmp_path / "old"
    for place, name, text in ((theirs, "thesis.tex", "x"), (old, "processes.json", '{"format": 0}')):
        place.mkdir()
        (place / name).write_text(text)
        for words in ("up", "down"):
            assert command.main([words, "--state", str(place)]) == 1
        assert (place / name).read_text() == text
    errors = capsys.readouterr().err
    assert f"{theirs} is not a folder of a deployment: name another one with --state" in errors
    assert f"{old} was left by another version (format 0" in errors
    assert command.main(["kill", "spot-worker", "--state", str(tmp_path / "none")]) == 1
    assert "no deployment runs in" in capsys.readouterr().err


def test_down_ends_only_processes_left_by_a_killed_deployment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = Folder(tmp_path / "state")
    with left.locked():
        left.create()
    mine, other = (
        subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: mark})
        for mark in (left.new_mark("worker"), "processes-00000000/worker/1")
    )
    assert command.main(["down", "--state", str(left.path)]) == 0
    assert "ended 1 processes" in capsys.readouterr().out
    mine.wait(120)
    assert other.poll() is None
    other.kill()
    other.wait()
    assert not left.path.exists()


def test_second_deployment_in_the_same_folder_is_refused(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.is_locked()
    assert command.main(["up", "--network", NETWORK, "--state", str(folder.path)]) == 1
    assert f"a deployment runs in {folder.path} (process {os.getpid()})" in capsys.readouterr().err
    assert folder.state(), "it is left unchanged"


def part(name: str, script: str, **changes: Any) -> Part:
    usual: dict[str, Any] = {
        "name": name,
        "service": name,
        "address": "127.91.7.1",
        "words": ("sh", "-c", script),
        "environment": dict(os.environ),
        "needs": {},
        "ends": False,
        "listens": (),
        "probe": Succeeds(("true",)),
    }
    return Part(**{**usual, **changes})


def test_parts_start_in_dependency_order_and_can_be_killed_and_restarted(
    folder: Folder, tmp_path: Path
) -> None:
    messages: list[str] = []
    service = part("service", "sleep 1000", needs={"step": "service_completed_successfully"})
    step = part("step", "true", ends=True, probe=None)
    manager = ProcessManager([service, step], folder, tmp_path, messages.append)
    assert manager.start_all() is not None
    assert [line.split()[0] for line in messages] == ["step", "service"]
    assert folder.kill_part("service") >= 1
    manager.update()
    assert folder.state()["parts"]["service"]["state"] == "away"
    folder.allow_start("service")
    while folder.state()["parts"]["service"]["state"] != "healthy":
        manager.update()
    manager.end()
    assert folder.clear() == 0, "nothing is left"


def test_unhealthy_ray_node_is_restarted_with_other_ports(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.processes.manager.RENEW_AFTER_S", 0.5)
    messages: list[str] = []
    well = part("node", "sleep 1000")
    ill = replace(well, probe=Succeeds(("false",)), renewed=lambda: later_parts.pop(0))
    later_parts = [ill, well]
    manager = ProcessManager([ill], folder, tmp_path, messages.append)
    assert manager.start_all() is not None
    manager.end()
    assert [" ".join(line.split()[:4]) for line in messages] == [
        "node is not healthy",
        "node 127.91.7.1 healthy after",
    ]
    assert folder.clear() == 0, "of the first nothing is left either"


def test_failed_part_is_reported_with_the_end_of_its_log(folder: Folder, tmp_path: Path) -> None:
    manager = ProcessManager([part("step", "echo no room; false", ends=True)], folder, tmp_path, print)
    with pytest.raises(Failed, match=r"step has ended with status 1:\nno room"):
        manager.start_all()
