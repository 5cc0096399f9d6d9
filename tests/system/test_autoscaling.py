"""Test Ray's autoscaler (v2) with its fake multi-node provider, whose machines are processes: from no workers
to a tuned model, and back.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system import books
from tests.system.serving import Served, kill, until
from tuner.cluster.dashboard import Dashboard, RayUnavailable
from tuner.cluster.launch import free_ports
from tuner.cluster.nodes import Node, nodes

pytestmark = [pytest.mark.system, pytest.mark.extended, pytest.mark.timeout(900)]

HEAD_ID = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"
IDLE_MINUTES = 0.1
# Ports that are not set would be fixed ones, which collide when two nodes share a machine.
PORTS = (
    *("ray-client-server-port", "node-manager-port", "object-manager-port"),
    *("dashboard-agent-grpc-port", "dashboard-agent-listen-port", "runtime-env-agent-port"),
    "metrics-export-port",
)
# Ray requires lists of commands, although these machines need none.
COMMANDS = (
    *("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands"),
    *(
        "head_start_ray_commands",
        "worker_start_ray_commands",
        "cluster_synced_files",
        "rsync_exclude",
        "rsync_filter",
    ),
)


def worker(market: str, kind: str, usd: str) -> dict[str, Any]:
    labels = {"ray.io/market-type": market, "instance-type": kind, "usd-per-hour": usd}
    return {"resources": {"CPU": 1}, "labels": labels, "node_config": {}, "min_workers": 0, "max_workers": 2}


class Growing:
    """A head without CPUs, with its own ports and folder. Ray's monitor starts workers on demand."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="scale-", dir="/tmp"))
        self.token = secrets.token_hex(16)
        self.config = self.folder / "cluster.yaml"
        self._begin()
        if until("the head answers, or is over", lambda: self._over() or self._look()) is True:
            self._begin()  # Another process may have taken one of the free ports.
            until("the head answers", self._look)

    def _begin(self) -> None:
        port, dashboard, *others = free_ports(2 + len(PORTS))
        self.url = f"http://127.0.0.1:{dashboard}"
        self.config.write_text(json.dumps(self._config(f"127.0.0.1:{port}")))
        command = [
            *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=0"),
            *("--node-ip-address=127.0.0.1", f"--port={port}", f"--dashboard-port={dashboard}"),
            *("--dashboard-host=127.0.0.1", "--include-dashboard=true", "--disable-usage-stats"),
            *(f"--temp-dir={self.folder}", f"--autoscaling-config={self.config}"),
            *("--min-worker-port=0", "--max-worker-port=0"),  # any port that the system assigns
            *(f"--{name}={number}" for name, number in zip(PORTS, others, strict=True)),
        ]
        environment = {
            "RAY_FAKE_CLUSTER": "1",
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_memory_monitor_refresh_ms": "0",
        }
        with (self.folder / "head.log").open("w") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def _config(self, gcs: str) -> dict[str, Any]:
        return {
            "cluster_name": "scaling",
            "max_workers": 3,
            "idle_timeout_minutes": IDLE_MINUTES,
            "upscaling_speed": 1.0,
            "provider": {
                # Ray's package has no defaults for this provider under its own name.
                "type": "external",
                "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
                "use_node_id_as_ip": True,
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
                "launch_multiple": True,
                "head_node_id": HEAD_ID,
                "gcs_address": gcs,
            },
            "auth": {},
            "file_mounts": {},
            **{name: [] for name in COMMANDS},
            "head_node_type": "ray.head.default",
            "available_node_types": {
                "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
                "large": worker("on-demand", "large", "36"),
                "cheap": worker("spot", "small", "3.6"),
                "other": worker("spot", "large", "7.2"),
            },
        }

    def _over(self) -> bool:
        return self._process.poll() is not None

    def _look(self) -> list[Node] | None:
        """Return all nodes, or None if the head does not answer."""
        assert not self._over(), (self.folder / "head.log").read_text()[-2000:]
        with closing(Dashboard(self.url, self.token)) as dashboard, suppress(RayUnavailable):
            return nodes(dashboard)
        return None

    def workers(self, *, alive: bool) -> list[Node]:
        worker_nodes = [node for node in until("the head answers", self._look) if not node.is_head]
        return [node for node in worker_nodes if node.alive] if alive else worker_nodes

    def stop(self) -> None:
        """Kill everything that was started, by pid: workers are children of the monitor, and their command
        lines name the folder.
        """
        own = [p for p in psutil.process_iter() if _is_of(p, str(self.folder))]
        if self._process.poll() is None:
            own += psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        for process in own:
            kill(process)
        psutil.wait_procs(own, timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)


def _is_of(process: psutil.Process, folder: str) -> bool:
    try:
        return process.pid != os.getpid() and any(folder in word for word in process.cmdline())
    except psutil.Error:
        return False


@pytest.fixture
def growing() -> Iterator[Growing]:
    cluster = Growing()
    yield cluster
    cluster.stop()


def test_autoscaler_adds_and_removes_machines_and_idle_cost_is_reported(
    growing: Growing, tmp_path: Path
) -> None:
    # No machine of another type is requested, however long the first takes to start.
    settings = {
        "TUNER_NODE_TYPES": str(growing.config),
        "TUNER_SPOT_WAIT": "600",
        "RAY_AUTH_TOKEN": growing.token,
    }
    served = Served(tmp_path / "home", TUNER_RAY_ADDRESS=growing.url, **settings).start()
    try:
        assert growing.workers(alive=True) == []
        wanted = {"market": "spot_with_fallback", "max_concurrent_trials": 1}
        steady = {"constants": {"step_s": 0.05}, "resources": wanted}
        job = served.submit("steady:train", budget={"usd": 1, "trials": 3}, **steady)
        assert "the autoscaler will be asked to start" in job.detail
        ended = served.finished(job.id)
        assert ended.stop_reason == "trials", ended.detail
        assert {node.instance_type for node in growing.workers(alive=False)} == {"small"}
        attempts = [
            a for t in served.client.trials(job.id) for a in served.client.trial(job.id, t.id).attempt_list
        ]
        assert {a.market for a in attempts} == {"spot"}
        books.check(served.client, job.id)
        until("the idle machines have gone", lambda: not growing.workers(alive=True))
        spend = until("the cost of the idle machines is known", lambda: _idle(served))
        assert spend.total.usd == served.client.job(job.id).spend.usd <= 1
        assert [(kind.instance_type, kind.market) for kind in spend.cluster.kinds] == [("small", "spot")]
        assert 0 < spend.cluster_idle_usd <= spend.cluster.usd
    finally:
        served.stop()


def _idle(served: Served) -> Any:
    spend = served.client.spend()
    return spend if spend.cluster_idle_usd else None
