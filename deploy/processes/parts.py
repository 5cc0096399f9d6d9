"""What stands for each container: the program, its environment, where it listens, and how its health is known."""

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
from deploy.processes.probes import Answers, Probe, Succeeds, asked_by
from tuner.cluster.launch import NODE_PORT_OPTIONS, free_ports
from tuner.cluster.processes import KEEP_ENVIRONMENT

NOBODY = "nobody"
RAY_PORT = 6379
OBJECT_STORE_BYTES = 100_000_000
DATABASE_PORT, STORAGE_PORT, PROMETHEUS_PORT = 5432, 9000, 9090
# Of images that nothing here stands for.
NOT_RUN = {
    "grafana/grafana": "Grafana: no program of it is looked for; its dashboard is deploy/grafana/dashboards/tuner.json"
}
INSTEAD = {"minio/minio": "MinIO: moto's server, which keeps objects in memory, stands for it"}
# The server refuses to run as root. What is in it goes with the deployment, so it need not wait for the disk.
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
    """`ends`: it does its work and is done. `user`: whose processes they are, None: the caller's. `anew`: what it is at its next
    start, where that is not the same."""

    name: str
    service: str
    address: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    needs: Mapping[str, str]
    ends: bool
    listens: tuple[int, ...]
    probe: Probe | None
    user: str | None = None
    anew: "Callable[[], Part] | None" = None


def not_run(project: Project) -> list[str]:
    """What of the file has nothing to stand for it, in words."""
    images = {container.image for container in project.containers()}
    return [
        *(words for image, words in NOT_RUN.items() if image in images),
        *(words for image, words in INSTEAD.items() if image in images),
        "what only containers have: images, networks that nothing outside reaches, dropped capabilities, limits of memory",
    ]


def parts_of(project: Project, folder: Folder) -> list[Part]:
    containers = project.containers()
    makers = {
        OURS: _ours,
        "postgres": _postgres,
        "minio/minio": _storage,
        "prom/prometheus": _prometheus,
    }
    around = _around([one.address for one in containers])
    return [makers[one.image](one, project, folder, around) for one in containers if one.image not in NOT_RUN]


def _around(addresses: list[str], outside: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The caller's environment without settings and secrets of ours, of Ray and of a cloud: containers see none of it either."""
    kept = {k: v for k, v in outside.items() if not k.startswith(("TUNER_", "RAY_", "AWS_", "PG"))}
    programs = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    direct = ",".join([*filter(None, [kept.get("no_proxy")]), *addresses])
    return {**kept, "PATH": programs, "no_proxy": direct, "NO_PROXY": direct}


def _part(one: Container, around: Mapping[str, str], **what: object) -> Part:
    base = Part(
        name=one.name,
        service=one.service,
        address=one.address,
        words=one.command,
        environment={**around, **one.environment},
        needs=one.needs,
        ends=one.ends,
        listens=(),
        probe=None,
    )
    return replace(base, **what)  # type: ignore[arg-type]


def _ours(one: Container, project: Project, folder: Folder, around: Mapping[str, str]) -> Part:
    """Of our image: Ray's nodes, the service, and what is to be done before it starts."""
    inside = {"/run/secrets": str(folder.secrets), "/var/lib/tuner": str(folder.machine(one.name))}
    one = replace(one, environment={name: _outside(text, inside) for name, text in one.environment.items()})
    if one.command[:2] == ("ray", "start"):
        return _ray(one, project, folder, around)
    if not one.health:
        return _part(one, around)
    probe = asked_by(one.health, one.address, one.environment)
    return _part(one, around, listens=(int(one.environment["TUNER_PORT"]),), probe=probe)


def _outside(text: str, inside: Mapping[str, str]) -> str:
    for path, here in inside.items():
        if text == path or text.startswith(f"{path}/"):
            return here + text.removeprefix(path)
    return text


def _ray(one: Container, project: Project, folder: Folder, around: Mapping[str, str]) -> Part:
    """What several nodes of one machine need beside the file's words: an address, a folder and ports of their own. Ray opens ports at
    all addresses, so that the head's is the only one that is as in the file."""
    ports = dict(zip(NODE_PORT_OPTIONS, map(str, free_ports(len(NODE_PORT_OPTIONS))), strict=True))
    (metrics,) = free_ports(1)
    is_head = "--head" in one.command
    port = project.port("ray-head", RAY_PORT)
    options = {
        **ports,
        "--node-ip-address": one.address,
        "--node-name": one.name,
        "--temp-dir": str(folder.ray(one.name)),
        "--object-store-memory": str(OBJECT_STORE_BYTES),
        "--min-worker-port": "0",
        "--max-worker-port": "0",
        "--include-log-monitor": "false",
    }
    words = [*one.command, *(f"{name}={value}" for name, value in options.items())]
    words += [f"--port={port}", "--no-monitor"] if is_head else []
    check = asked_by(one.health, one.address, {})
    at_agent = check.url.replace(":52365/", f":{ports['--dashboard-agent-listen-port']}/")
    added = {
        **KEEP_ENVIRONMENT,
        "RAY_START_HOOK": "tuner.cluster.start_hook.without_client_server",
        "DASHBOARD_METRIC_PORT": str(metrics),
        # At the end nothing is drained: all of it goes.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    return _part(
        replace(one, environment={**one.environment, **added}),
        around,
        words=tuple(words),
        listens=(8265,) if is_head else (),
        probe=Answers(at_agent, check.says),
        # Ports that are free now may not be at another start.
        anew=lambda: _ray(one, project, folder, around),
    )


def _postgres(one: Container, project: Project, folder: Folder, around: Mapping[str, str]) -> Part:
    bindir = postgres_programs()
    assert bindir is not None
    place = (one.address, str(folder.database / "data"), str(DATABASE_PORT))
    asks = (str(bindir / "pg_isready"), "-h", one.address, "-p", str(DATABASE_PORT), *one.health.split()[1:])
    return _part(
        one,
        around,
        words=("sh", "-c", _POSTGRES, str(bindir), *place),
        listens=(DATABASE_PORT,),
        probe=Succeeds(asks),
        user=NOBODY if os.geteuid() == 0 else None,
    )


def _storage(one: Container, project: Project, folder: Folder, around: Mapping[str, str]) -> Part:
    words = ("python", "-m", "moto.server", "-H", one.address, "-p", str(STORAGE_PORT))
    probe = Answers(f"http://{one.address}:{STORAGE_PORT}/", any_status=True)
    return _part(one, around, words=words, listens=(STORAGE_PORT,), probe=probe)


def _prometheus(one: Container, project: Project, folder: Folder, around: Mapping[str, str]) -> Part:
    machine = folder.machine(one.name)
    (config,) = [path for path in one.mounts if path.endswith("/prometheus.yml")]
    (machine / "prometheus.yml").write_text(scraped(Path(one.mounts[config]).read_text(), project))
    if not (machine / "rules").exists():
        (machine / "rules").symlink_to(one.mounts[str(Path(config).parent / "rules")])
    inside = {config: str(machine / "prometheus.yml"), "/prometheus": str(machine / "data")}
    words = [_value_outside(word, inside) for word in one.command]
    return _part(
        one,
        around,
        words=("prometheus", *words, f"--web.listen-address={one.address}:{PROMETHEUS_PORT}"),
        listens=(PROMETHEUS_PORT,),
        probe=asked_by(one.health, one.address, {}),
    )


def _value_outside(word: str, inside: Mapping[str, str]) -> str:
    name, equals, value = word.partition("=")
    return f"{name}{equals}{inside.get(value, value)}"


def scraped(config: str, project: Project) -> str:
    """Prometheus' configuration with addresses in place of the names of services, which no DNS has."""
    found = yaml.safe_load(config)
    for job in found["scrape_configs"]:
        asked = job.pop("dns_sd_configs", [])
        targets = [
            f"{address}:{one['port']}"
            for one in asked
            for name in one["names"]
            for address in project.addresses(name)
        ]
        job.setdefault("static_configs", []).append({"targets": targets})
    return yaml.safe_dump(found)


@cache
def postgres_programs() -> Path | None:
    """Where initdb, postgres and pg_isready are; None where this machine has none."""
    named = []
    if config := shutil.which("pg_config"):
        said = subprocess.run([config, "--bindir"], capture_output=True, text=True).stdout
        named.append(Path(said.strip()))
    # Debian keeps them out of the PATH, and pg_config in a package of its own.
    places = [*named, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    wanted = ("initdb", "postgres", "pg_isready")
    return next((place for place in places if all((place / name).exists() for name in wanted)), None)
