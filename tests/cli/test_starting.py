"""Work that a starting service postpones until it can answer, so that it takes over quickly."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests import fakes
from tuner.cli import demo
from tuner.cli import server as serving
from tuner.cli.server import SLOW_MODULES, PostponedStart, listen
from tuner.client import Client
from tuner.database.database import newest_revision
from tuner.service.bootstrap import build
from tuner.service.maintenance import StorageWatch
from tuner.service.metrics_snapshot import MetricsReader
from tuner.service.mirroring import Mirrors
from tuner.settings import Settings

# Each takes a tenth of a second or more to import; torch and Ray take seconds.
HEAVY = (
    "ray",
    "torch",
    "optuna",
    "alembic",
    "scipy",
    "pandas",
    "pyarrow",
    "sklearn",
    "mlflow",
    "tensorboardX",
)
START = """
import sys
import tuner.cli.main, tuner.cli.server
from tuner.cli.server import build, create_app
from tuner.settings import Settings
app = create_app(build(Settings.from_env()))
assert app.state.service.database.revision(), "it is empty"
print(*[name for name in sys.argv[1:] if name in sys.modules])
"""


def test_start_on_an_up_to_date_database_imports_no_heavy_modules(tmp_path: Path) -> None:
    fakes.database_in(tmp_path).dispose()
    environment = {"TUNER_HOME": str(tmp_path), "TUNER_OPTUNA_STORAGE": f"sqlite:///{tmp_path}/optuna.db"}
    command = [sys.executable, "-c", START, *HEAVY, *SLOW_MODULES]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_start_on_an_empty_database_migrates_it(tmp_path: Path) -> None:
    database = build(Settings.from_env({"TUNER_HOME": str(tmp_path)})).database
    assert database.revision() == newest_revision()
    database.dispose()


def test_background_work_starts_when_the_service_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "FIRST_ANSWERS_S", 0.0)
    service, ready = fakes.service_in(tmp_path), threading.Event()
    storage = StorageWatch(service)
    postponed = PostponedStart(service, MetricsReader(service), [storage], Mirrors(service), after=ready)
    postponed.start()
    postponed.join(0.2)
    assert postponed.is_alive()
    assert storage.ident is None
    ready.set()
    postponed.join(60)
    assert storage.ident is not None
    assert all(name in sys.modules for name in SLOW_MODULES)
    storage.stop(timeout_s=0)


def test_service_that_stops_before_it_is_ready_starts_no_background_work(tmp_path: Path) -> None:
    service, ready = fakes.service_in(tmp_path), threading.Event()
    storage, mirrors = StorageWatch(service), Mirrors(service)
    postponed = PostponedStart(service, MetricsReader(service), [storage], mirrors, after=ready)
    postponed.start()
    postponed.cancel()
    storage.stop(timeout_s=0)
    mirrors.stop()
    ready.set()
    postponed.join(60)
    assert not postponed.is_alive()
    assert storage.ident is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_use_tcp_nodelay(tmp_path: Path, host: str) -> None:
    """Without TCP_NODELAY, the second packet of a response would be delayed by 40 ms."""

    async def nodelay_of_connection() -> int:
        nodelay: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted: socket.socket = writer.get_extra_info("socket")
            nodelay.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        settings = replace(fakes.service_in(tmp_path).settings, host=host, port=0)
        server = await asyncio.start_server(connected, sock=listen(settings))
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            set_to = await nodelay
            writer.close()
            await writer.wait_closed()
        return set_to

    assert asyncio.run(nodelay_of_connection())


def test_demo_uses_no_setting_of_the_users_own_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {
        "TUNER_DATABASE_URL": "postgresql://tuner@db/tuner",
        "TUNER_DATABASE_URL_FILE": "/run/secrets/database_url",
        "TUNER_STORAGE": "s3://bucket/tuner",
        "TUNER_RAY_ADDRESS": "http://ray:8265",
        "TUNER_NODE_TYPES": "/srv/cluster.yaml",
        "TUNER_MLFLOW_URI": "http://mlflow",
        "TUNER_OPTUNA_STORAGE": "postgresql://tuner@db/optuna",
        "TUNER_TENSORBOARD": "/srv/tensorboard",
        "TUNER_PROJECT": "vision",
        "TUNER_API_KEY": "key",
        "TUNER_HOST": "0.0.0.0",
        "TUNER_PORT": "80",
    }
    kept = {"TUNER_LOCAL_CPUS": "2", "TUNER_ALLOWED_MODULES": "mine", "TUNER_USER_SEED": "1", "PATH": "/bin"}
    environment = demo._environment(tmp_path, {**own, **kept})
    assert environment == {**kept, "TUNER_HOME": str(tmp_path), "TUNER_PORT": "0"}

    monkeypatch.setenv("TUNER_PROJECT", "vision")
    monkeypatch.setattr(Client, "is_ready", lambda client: True)
    (tmp_path / "api_key").write_text("key")
    line = f"print('tuner serves http://127.0.0.1:9, with the key in {tmp_path}/api_key')"
    with subprocess.Popen([sys.executable, "-c", line], stdout=subprocess.PIPE, text=True) as process:
        assert demo._ready(process, tmp_path)._sync.headers["Tuner-Project"] == "default"
