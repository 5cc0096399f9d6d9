"""Build the command, the environment and the ports with which Ray is started on this machine."""

import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tuner.cluster.processes import KEEP_ENVIRONMENT, MARK
from tuner.domain.time import RAY_START_S

LOOPBACK = "127.0.0.1"
OBJECT_STORE_BYTES = 200_000_000

# The options for the ports of a node. The ports from `free_ports` are assigned to them in this order. Without these options Ray uses fixed
# ports, and several heads and nodes on one machine would collide.
NODE_PORT_OPTIONS = (
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--runtime-env-agent-port",
    "--metrics-export-port",
    "--node-manager-port",
    "--object-manager-port",
)
_PORT_OPTIONS = ("--port", "--dashboard-port", *NODE_PORT_OPTIONS)
PORTS = len(_PORT_OPTIONS) + 1
# The ports to choose from: below those that the system assigns to outgoing connections, and above those of Ray's workers.
_FREE = range(20_000, 32_000)
# The options with which both a head and a node that joins it are started.
_OPTIONS = {
    "--node-ip-address": LOOPBACK,
    # 0 lets the system assign the ports of workers.
    "--min-worker-port": 0,
    "--max-worker-port": 0,
    "--include-log-monitor": "false",
}
_FLAGS = ("--block", "--disable-usage-stats")

# The colors and cursor movements that Ray writes even into a file.
_ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")

_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # 0 disables Ray's memory monitor. It kills workers when memory runs short, and Ray Tune fails on the resulting error. Our supervisor
    # limits memory instead.
    "RAY_memory_monitor_refresh_ms": "0",
    # 0 disables Ray's clusters. If they are enabled, Ray replaces 127.0.0.1 by the machine's address and listens on all interfaces.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "4",
    # On SIGTERM, Ray ends without waiting for running work. Jobs have been stopped before that, or are resumed later.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # By default Ray runs workers and drivers at the low priority nice 15. Then other processes of the machine would slow down training,
    # which is billed by the second.
    "RAY_worker_niceness": "0",
    # By default Ray starts idle workers in advance. Our workers have their own environment, so no idle worker is ever
    # used.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_BACKEND_LOG_LEVEL": "warning",
    # By default `ray start` waits 60 s for the dashboard. On a busy machine the dashboard needs longer.
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": f"{RAY_START_S:.0f}",
    "RAY_ROTATION_MAX_BYTES": str(20 << 20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    **KEEP_ENVIRONMENT,
}


@dataclass(frozen=True, slots=True)
class HeadLaunch:
    """Make the command and the environment for one start of a head."""

    session: str
    temp_dir: Path
    token_path: Path
    ports: tuple[int, ...]
    cpus: int | None
    gpus: int | None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.ports[0]}"

    @property
    def dashboard_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports[1]}"

    def command(self) -> list[str]:
        counts = {"--num-cpus": self.cpus, "--num-gpus": self.gpus}
        options = {
            **dict(zip(_PORT_OPTIONS, self.ports, strict=False)),
            **{name: count for name, count in counts.items() if count is not None},
            "--dashboard-host": LOOPBACK,
            # With this option `ray start` ends if the dashboard does not start. By default it would continue without the dashboard.
            "--include-dashboard": "true",
            "--temp-dir": self.temp_dir,
            "--object-store-memory": OBJECT_STORE_BYTES,
        }
        return start_command(options, ("--head", "--no-monitor"))

    def environment(self, outside: Mapping[str, str] = os.environ) -> dict[str, str]:
        return {
            **ray_environment(self.session, self.token_path, outside),
            "RAY_START_HOOK": "tuner.cluster.start_hook.without_client_server",
            "DASHBOARD_METRIC_PORT": str(self.ports[-1]),
        }


def start_command(options: Mapping[str, object], flags: Iterable[str] = ()) -> list[str]:
    """Return a command that runs `ray start` with these options and flags.

    The process of the command keeps running. When it gets SIGTERM, it ends the processes that it started.
    """
    values = [text for name, value in {**_OPTIONS, **options}.items() for text in (name, str(value))]
    # With -P, Python does not import modules from the working directory, where a file could have the name of one of Ray's modules.
    return [sys.executable, "-P", "-m", "tuner.cluster.start_hook", "start", *_FLAGS, *flags, *values]


def ray_environment(
    session: str, token_path: Path, outside: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment for Ray's processes: the variables in `outside`, and our settings for Ray.

    Two kinds of variables in `outside` are left out: the service's settings and secrets (`TUNER_*`), and Ray's settings (`RAY_*`), which
    may refer to another cluster.

    Args:
        session: The unique name of the Ray session, by which its processes are found (see `tuner.cluster.processes`).
        token_path: The file with the cluster's token.
        outside: The environment variables of the calling process.
    """
    kept = {name: value for name, value in outside.items() if not name.startswith(("TUNER_", "RAY_"))}
    return {**kept, **_ENVIRONMENT, MARK: session, "RAY_AUTH_TOKEN_PATH": str(token_path)}


def free_ports(count: int) -> tuple[int, ...]:
    """Return `count` ports of the loopback interface on which no process listens now.

    Another process may still take a returned port before Ray uses it. No outgoing connection takes one, because the returned ports are
    outside the range from which the system chooses the ports of outgoing connections.

    Raises:
        OSError: Too few ports are free.
    """
    ports = []
    with ExitStack() as open_sockets:
        for port in _FREE[Random().randrange(len(_FREE) - 1000) :]:
            trial = open_sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                trial.bind((LOOPBACK, port))
            except OSError:
                continue
            ports.append(trial.getsockname()[1])
            if len(ports) == count:
                return tuple(ports)
    raise OSError(f"{count} free ports are needed, {len(ports)} found")


def tail(path: Path, *, bytes_max: int = 2000) -> str:
    """Return the last lines of a log file, of `bytes_max` bytes at most, without escape sequences.

    Return "" if the file does not exist. If the last line is longer than `bytes_max` bytes, return its end.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    # The cut may be within an escape sequence, so remove them first.
    content = _ESCAPES.sub(b"", content).rstrip()
    end = content[-bytes_max:]
    if len(content) > bytes_max and content[-bytes_max - 1 : -bytes_max] != b"\n":
        end = end.partition(b"\n")[2] or end
    return end.decode(errors="replace")
