"""The processes that replace the containers: program, environment, address and health check of each."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml

from deploy.processes.compose import OURS, Container, Project
from deploy.processes.folder import Folder
from deploy.processes.probes import Answers, Probe, Succeeds, probe_of_check
from tuner.cluster.launch import NODE_PORT_OPTIONS, free_ports
from tuner.cluster.processes import KEEP_ENVIRONMENT

NOBODY = "nobody"
RAY_PORT = 6379
OBJECT_STORE_BYTES = 100_000_000
DATABASE_PORT, STORAGE_PORT, PROMETHEUS_PORT = 5432, 9000, 9090
# Images that are not replaced.
NOT_RUN = {"grafana/grafana": "Grafana: not started; the dashboard is deploy/grafana/dashboards/tuner.json"}
INSTEAD = {"minio/minio": "MinIO: replaced by moto's server, which keeps objects in memory"}
# Run as another user, because the server refuses to run as root. The data is deleted with the deployment, so fsync is off.
_POSTGRES = """set -eu
if ! test -e "$2/PG_VERSION"; then
  printf %s "$POSTGRES_PASSWORD" | "$0/initdb" --pgdata="$2" --username="$POSTGRES_USER" --pwfile=/dev/stdin \\
    --auth-local=reject --auth-host=scram-sha-256 --no-sync --encoding=UTF8 --locale=C
  echo "CREATE DATABASE \\"$POSTGRES_DB\\"" | "$0/postgres" --single -D "$2" postgres
fi
exec "$0/postgres" -D "$2" -c listen_addresses="$1" -c port="$3" -c unix_socket_directories= -c fsync=off
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A program that replaces one container."""

    name: str
    service: str
    address: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    needs: Mapping[str, str]
    ends: bool  #: The program ends after its work, like a database migration.
    listens: tuple[int, ...]  #: The ports on which it listens.
    probe: Probe | None
    user: str | None = None  #: The user who runs it. None for the caller.
    #: Return the part for its next start. None if the part does not change.
    renewed: "Callable[[], Part] | None" = None


def not_run(project: Project) -> list[str]:
    """Return a sentence for each thing in the Compose file that is not run."""
    images = {container.image for container in project.containers()}
    return [
        *(words for image, words in NOT_RUN.items() if image in images),
        *(words for image, words in INSTEAD.items() if image in images),
        "features of containers: images, isolated networks, dropped capabilities, memory limits",
    ]


def parts_of(project: Project, folder: Folder) -> list[Part]:
    containers = project.containers()
    makers = {
        OURS: _ours,
        "postgres": _postgres,
        "minio/minio": _storage,
        "prom/prometheus": _prometheus,
    }
    inherited = _inherited_environment([container.address for container in containers])
    return [
        makers[container.image](container, project, folder, inherited)
        for container in containers
        if container.image not in NOT_RUN
    ]


def _inherited_environment(addresses: list[str], outside: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the caller's environment without the settings and secrets of tuner, Ray and the cloud, which containers do not see either."""
    kept = {k: v for k, v in outside.items() if not k.startswith(("TUNER_", "RAY_", "AWS_", "PG"))}
    programs = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    direct = ",".join([*filter(None, [kept.get("no_proxy")]), *addresses])
    return {**kept, "PATH": programs, "no_proxy": direct, "NO_PROXY": direct}


def _part(container: Container, inherited: Mapping[str, str], **changes: object) -> Part:
    base = Part(
        name=container.name,
        service=container.service,
        address=container.address,
        words=container.command,
        environment={**inherited, **container.environment},
        needs=container.needs,
        ends=container.ends,
        listens=(),
        probe=None,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def _ours(container: Container, project: Project, folder: Folder, inherited: Mapping[str, str]) -> Part:
    """Return the part for a container of our image: a Ray node, the service, or a step before it starts."""
    local_paths = {"/run/secrets": str(folder.secrets), "/var/lib/tuner": str(folder.machine(container.name))}
    container = replace(
        container,
        environment={name: _local_path(text, local_paths) for name, text in container.environment.items()},
    )
    if container.command[:2] == ("ray", "start"):
        return _ray(container, project, folder, inherited)
    if not container.health:
        return _part(container, inherited)
    probe = probe_of_check(container.health, container.address, container.environment)
    return _part(container, inherited, listens=(int(container.environment["TUNER_PORT"]),), probe=probe)


def _local_path(text: str, local_paths: Mapping[str, str]) -> str:
    for path, here in local_paths.items():
        if text == path or text.startswith(f"{path}/"):
            return here + text.removeprefix(path)
    return text


def _ray(container: Container, project: Project, folder: Folder, inherited: Mapping[str, str]) -> Part:
    """Return the part for a Ray node.

    Several nodes on one machine each need their own address, folder and ports in addition to the command of the file. Ray opens
    its ports at all addresses, so only the head's port is the one in the file.
    """
    ports = dict(zip(NODE_PORT_OPTIONS, map(str, free_ports(len(NODE_PORT_OPTIONS))), strict=True))
    (metrics,) = free_ports(1)
    is_head = "--head" in container.command
    port = project.port("ray-head", RAY_PORT)
    options = {
        **ports,
        "--node-ip-address": container.address,
        "--node-name": container.name,
        "--temp-dir": str(folder.ray(container.name)),
        "--object-store-memory": str(OBJECT_STORE_BYTES),
        "--min-worker-port": "0",
        "--max-worker-port": "0",
        "--include-log-monitor": "false",
    }
    words = [*container.command, *(f"{name}={value}" for name, value in options.items())]
    words += [f"--port={port}", "--no-monitor"] if is_head else []
    check = probe_of_check(container.health, container.address, {})
    at_agent = check.url.replace(":52365/", f":{ports['--dashboard-agent-listen-port']}/")
    added = {
        **KEEP_ENVIRONMENT,
        "RAY_START_HOOK": "tuner.cluster.start_hook.without_client_server",
        "DASHBOARD_METRIC_PORT": str(metrics),
        # Draining is not useful, because all nodes stop together.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    return _part(
        replace(container, environment={**container.environment, **added}),
        inherited,
        words=tuple(words),
        listens=(8265,) if is_head else (),
        probe=Answers(at_agent, check.says),
        # Ports that are free now may be in use at the next start.
        renewed=lambda: _ray(container, project, folder, inherited),
    )


def _postgres(container: Container, project: Project, folder: Folder, inherited: Mapping[str, str]) -> Part:
    bindir = postgres_programs()
    assert bindir is not None
    place = (container.address, str(folder.database / "data"), str(DATABASE_PORT))
    command = (
        str(bindir / "pg_isready"),
        "-h",
        container.address,
        "-p",
        str(DATABASE_PORT),
        *container.health.split()[1:],
    )
    return _part(
        container,
        inherited,
        words=("sh", "-c", _POSTGRES, str(bindir), *place),
        listens=(DATABASE_PORT,),
        probe=Succeeds(command),
        user=NOBODY if os.geteuid() == 0 else None,
    )


def _storage(container: Container, project: Project, folder: Folder, inherited: Mapping[str, str]) -> Part:
    words = ("python", "-m", "moto.server", "-H", container.address, "-p", str(STORAGE_PORT))
    probe = Answers(f"http://{container.address}:{STORAGE_PORT}/", any_status=True)
    return _part(container, inherited, words=words, listens=(STORAGE_PORT,), probe=probe)


def _prometheus(container: Container, project: Project, folder: Folder, inherited: Mapping[str, str]) -> Part:
    machine = folder.machine(container.name)
    (config,) = [path for path in container.mounts if path.endswith("/prometheus.yml")]
    text = scraped(Path(container.mounts[config]).read_text(), project, folder.secrets)
    (machine / "prometheus.yml").write_text(text)
    if not (machine / "rules").exists():
        (machine / "rules").symlink_to(container.mounts[str(Path(config).parent / "rules")])
    local_paths = {config: str(machine / "prometheus.yml"), "/prometheus": str(machine / "data")}
    words = [_value_outside(word, local_paths) for word in container.command]
    return _part(
        container,
        inherited,
        words=("prometheus", *words, f"--web.listen-address={container.address}:{PROMETHEUS_PORT}"),
        listens=(PROMETHEUS_PORT,),
        probe=probe_of_check(container.health, container.address, {}),
    )


def _value_outside(word: str, local_paths: Mapping[str, str]) -> str:
    name, equals, value = word.partition("=")
    return f"{name}{equals}{local_paths.get(value, value)}"


def scraped(config: str, project: Project, secrets: Path) -> str:
    """Return Prometheus' configuration with addresses instead of service names, because no DNS knows the names.

    Args:
        secrets: The folder with the files that containers have in /run/secrets.
    """
    scrape_config = yaml.safe_load(config)
    for job in scrape_config["scrape_configs"]:
        key = Path(job["authorization"]["credentials_file"])
        job["authorization"]["credentials_file"] = str(secrets / key.name)
        lookups = job.pop("dns_sd_configs", [])
        targets = [
            f"{address}:{lookup['port']}"
            for lookup in lookups
            for name in lookup["names"]
            for address in project.addresses(name)
        ]
        job.setdefault("static_configs", []).append({"targets": targets})
    return yaml.safe_dump(scrape_config)


@cache
def postgres_programs() -> Path | None:
    """Return the folder of initdb, postgres and pg_isready, or None if this machine lacks them."""
    candidates = []
    if config := shutil.which("pg_config"):
        completed = subprocess.run([config, "--bindir"], capture_output=True, text=True)
        candidates.append(Path(completed.stdout.strip()))
    # On Debian they are not in the PATH, and pg_config is in a separate package.
    folders = [*candidates, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    programs = ("initdb", "postgres", "pg_isready")
    return next((folder for folder in folders if all((folder / name).exists() for name in programs)), None)
