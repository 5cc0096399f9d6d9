"""Run a Ray node on this machine: a raylet (Ray's process for a node) with its agents and workers.

The node joins a local head, can be killed like a machine that is taken away, and can be started again.

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
from tuner.domain.listing import Market
from tuner.domain.offer import MARKET_LABEL

# The object store is small, because several nodes share one machine. Ray accepts no less than 75 MiB.
OBJECT_STORE_BYTES = 80_000_000
END_TIMEOUT_S = 10.0
NodeState = Literal["starting", "alive", "gone"]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The machine that a node simulates: its size, market, machine type and price."""

    name: str
    market: Market
    instance_type: str
    usd_per_hour: Decimal
    cpus: int  #: Logical CPUs.
    gpus: int  #: Logical GPUs.
    memory_bytes: int  #: The node's share of the machine's memory.

    @property
    def labels(self) -> Mapping[str, str]:
        return {
            MARKET_LABEL: its.RAY_MARKETS[self.market],
            its.INSTANCE_TYPE[-1]: self.instance_type,
            its.PRICE: f"{self.usd_per_hour:f}",
        }


class LocalNode:
    """A node that can be started repeatedly. Only one thread may use it.

    It has the same ports after each start, like a machine that returns with the same address.
    """

    def __init__(
        self, spec: NodeSpec, *, prefix: str, token_path: Path, log_path: Path, sockets: Path
    ) -> None:
        """Create the node without starting it.

        Args:
            spec: The machine that it simulates.
            prefix: The beginning of its session name. Its processes have this name in an environment variable, by which they are found.
            token_path: The file with the cluster's token.
            log_path: The file for the output of its processes.
            sockets: The directory for its sockets, created by the head. The name is short, because paths of sockets have a length limit.
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
        """Start the node's processes, which join the head at this address. Return without waiting for them."""
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

        It is not enough to check whether the process `ray start` has ended. `ray start` ends within a second if its raylet fails,
        but keeps running if its raylet ends because the node was drained.
        """
        if self._process is None or self._process.poll() is not None:
            return True
        return bool(self._raylet) and mark_of(self._raylet) != self.session

    def last_output(self) -> str:
        return tail(self._log_path)

    def kill(self) -> None:
        """Kill all processes of the node at once, like a machine that is taken away.

        Call this also for a node that has ended, because some of its processes may still run.
        """
        kill_marked(self._prefix)
        if self._process is not None:
            self._process.wait()
            self._process = None
        # Choose new ports for the next start if the node was still starting: another process may have taken one of the ports.
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
        """Send SIGTERM to `ray start` only. It then ends the other processes of the node itself."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def _find_raylet(self) -> int:
        """Return the process id of the node's raylet, or 0 if the process does not exist."""
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
