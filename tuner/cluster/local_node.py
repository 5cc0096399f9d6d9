"""Run a Ray node on this machine: a raylet with its agents and workers.

The node joins a local head and can be taken away again.

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

from tuner.cluster import nodes as its
from tuner.cluster.launch import NODE_PORT_OPTIONS, free_ports, ray_environment, start_command, tail
from tuner.cluster.processes import kill_marked, mark_of
from tuner.cluster.start_hook import SOCKETS

# Small, as several nodes share one machine; Ray takes no less than 75 MiB.
OBJECT_STORE_BYTES = 80_000_000
END_TIMEOUT_S = 10.0
NodeState = Literal["starting", "alive", "gone"]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The machine that a node simulates."""

    name: str
    market: its.Market
    instance_type: str
    usd_per_hour: Decimal
    cpus: int  #: Logical CPUs.
    gpus: int  #: Logical GPUs.
    memory_bytes: int  #: The node's share of the machine's memory.

    @property
    def labels(self) -> Mapping[str, str]:
        return {
            its.MARKET: its.MARKETS[self.market],
            its.INSTANCE_TYPE[-1]: self.instance_type,
            its.PRICE: f"{self.usd_per_hour:f}",
        }


class LocalNode:
    """A node that can be started repeatedly. Used by one thread.

    It keeps its ports, as a machine that returns keeps its address.
    """

    def __init__(
        self, spec: NodeSpec, *, prefix: str, token_path: Path, log_path: Path, sockets: Path
    ) -> None:
        """Prepare a node.

        Args:
            spec: The machine that it simulates.
            prefix: The beginning of the mark of its processes.
            token_path: The file with the cluster's token.
            log_path: The file for its output.
            sockets: A directory with a short name, created by the head.
        """
        self.spec = spec
        self.state: NodeState = "gone"
        self.node_id, self.session, self._token = "", "", ""
        self._prefix, self._token_path, self._log_path = f"{prefix}{spec.name}-", token_path, log_path
        self._sockets = sockets
        self._ports: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._raylet = 0

    def start(self, address: str) -> None:
        """Start to join the head at this address. Does not wait."""
        self.kill()
        self._token = secrets.token_hex(8)
        self.session = f"{self._prefix}{self._token}"
        self._ports = self._ports or free_ports(len(NODE_PORT_OPTIONS))
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                start_command(self._options(address)),
                env={
                    **ray_environment(self.session, self._token_path),
                    "RAY_START_HOOK": "tuner.cluster.start_hook.on_the_loopback",
                    SOCKETS: str(self._sockets / self._token),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must reach only the process that keeps the node
            )
        self.state, self.node_id, self._raylet = "starting", "", 0

    def joined(self, node_id: str) -> None:
        self.state, self.node_id, self._raylet = "alive", node_id, self._find_raylet()

    def has_ended(self) -> bool:
        """Return whether the node's raylet has ended for any reason.

        `ray start` ends within a second if its raylet fails, but never if the raylet ends because it was drained.
        """
        if self._process is None or self._process.poll() is not None:
            return True
        return bool(self._raylet) and mark_of(self._raylet) != self.session

    def last_output(self) -> str:
        return tail(self._log_path)

    def kill(self) -> None:
        """Kill the node at once, like a machine that is taken away.

        Also kill remaining processes of a node that has ended.
        """
        kill_marked(self._prefix)
        if self._process is not None:
            self._process.wait()
            self._process = None
        # the node did not start: another process may have taken one of its ports
        if self.state == "starting":
            self._ports = ()
        self.state = "gone"

    def end(self) -> None:
        """Wait for the node to end by itself for up to `END_TIMEOUT_S`, then kill it."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT_S)
        self.kill()

    def ask_to_end(self) -> None:
        """Send SIGTERM to `ray start` alone, which ends its own parts."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def _find_raylet(self) -> int:
        """Return the raylet's process id, or 0 if it is not found."""
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
