"""A node of this machine: a raylet with its agents and workers, which joins a local head and can be taken away again.

starting ──▶ alive ──▶ gone ──▶ starting ──▶ …
"""

import contextlib
import secrets
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

import psutil

from tuner.engine.ray_cluster import labels as its
from tuner.engine.ray_cluster.launch import (
    NODE_PORT_OPTIONS,
    free_ports,
    ray_environment,
    start_command,
    tail,
)
from tuner.engine.ray_cluster.processes import kill_marked, mark_of
from tuner.engine.ray_cluster.start_hook import SOCKETS

# Small, as several nodes share one machine; Ray takes no less than 75 MiB.
OBJECT_STORE_BYTES = 80_000_000
END_TIMEOUT_S = 10.0
NodeState = Literal["starting", "alive", "gone"]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What a node pretends to be. `cpus` and `gpus` are logical; `memory_bytes` is its share of the machine's."""

    name: str
    market: its.Market
    instance_type: str
    usd_per_hour: Decimal
    cpus: int
    gpus: int
    memory_bytes: int

    @property
    def labels(self) -> Mapping[str, str]:
        return {
            its.MARKET: its.MARKETS[self.market],
            its.INSTANCE_TYPE[-1]: self.instance_type,
            its.PRICE: f"{self.usd_per_hour:f}",
        }


class LocalNode:
    """One thread. It comes back under the ports that it had, as a machine comes back under its address."""

    def __init__(
        self, spec: NodeSpec, *, prefix: str, token_path: Path, log_path: Path, sockets: Path
    ) -> None:
        """`prefix` begins the mark of its processes; `sockets` is a folder with a short name, which is there once a head is."""
        self.spec = spec
        self.state: NodeState = "gone"
        self.node_id, self.session, self._token = "", "", ""
        self._prefix, self._token_path, self._log_path = f"{prefix}{spec.name}-", token_path, log_path
        self._sockets = sockets
        self._ports: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._raylet = 0

    def start(self, address: str) -> None:
        """Begins to join the head at this address."""
        self.kill()
        self._token = secrets.token_hex(8)
        self.session = f"{self._prefix}{self._token}"
        self._ports = self._ports or free_ports(len(NODE_PORT_OPTIONS))
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                start_command(self._options(address)),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for whoever keeps the node
            )
        self.state, self.node_id, self._raylet = "starting", "", 0

    def joined(self, node_id: str) -> None:
        self.state, self.node_id, self._raylet = "alive", node_id, self._find_raylet()

    def has_ended(self) -> bool:
        """Whether its raylet has, by whatever hand. `ray start` ends within a second of one that failed, and never after one that
        was drained."""
        if self._process is None or self._process.poll() is not None:
            return True
        return bool(self._raylet) and mark_of(self._raylet) != self.session

    def said_last(self) -> str:
        return tail(self._log_path)

    def kill(self) -> None:
        """At once, as a machine that is taken away; and what is left of one that ended."""
        kill_marked(self._prefix)
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self.state == "starting":  # and never came up: somebody may have taken one of its ports
            self._ports = ()
        self.state = "gone"

    def end(self) -> None:
        """In good order, where it does so in time."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT_S)
        self.kill()

    def ask_to_end(self) -> None:
        """SIGTERM to `ray start` alone, which ends its parts itself."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def _find_raylet(self) -> int:
        """Its process id, 0 where it cannot be seen."""
        with contextlib.suppress(psutil.Error):
            started = psutil.Process(self._process.pid).children() if self._process else []
            return next((child.pid for child in started if child.name() == "raylet"), 0)
        return 0

    def _options(self, address: str) -> dict[str, object]:
        spec = self.spec
        return {
            **dict(zip(NODE_PORT_OPTIONS, self._ports, strict=True)),
            "--address": address,
            "--node-name": spec.name,
            "--num-cpus": spec.cpus,
            "--num-gpus": spec.gpus,
            "--memory": spec.memory_bytes,
            "--object-store-memory": OBJECT_STORE_BYTES,
            "--labels": ",".join(f"{name}={value}" for name, value in spec.labels.items()),
        }

    def _environment(self) -> dict[str, str]:
        hook = {"RAY_START_HOOK": "tuner.engine.ray_cluster.start_hook.on_the_loopback"}
        sockets = {SOCKETS: str(self._sockets / self._token)}
        return {**ray_environment(self.session, self._token_path), **hook, **sockets}
