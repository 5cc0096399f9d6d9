"""PostgreSQL for tests: one server per test run, and a database of its own for each test that asks for one.

The first test process that needs the server starts it, and all pytest-xdist workers share it. The process that started the run
stops it at the end. Its folder is not in pytest's temporary directory: PostgreSQL refuses to run as root, and the user that runs it
then cannot enter that directory.
"""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import psycopg
import pytest
from filelock import FileLock

from tuner.database.database import Database

NOBODY = "nobody"  #: Runs the server if the tests run as root.
TIMEOUT_S = 300
FAST = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off"
# Each `Database` keeps up to 15 connections, and a test on each worker may have several of them in several processes.
CONNECTIONS = "-c max_connections=400"
DEBIAN = Path("/usr/lib/postgresql")


@cache
def programs() -> Path | None:
    """Return the folder of initdb, pg_ctl and postgres, or None if PostgreSQL is not installed."""
    folders = [path.parent for name in ("initdb", "pg_ctl") if (path := _resolved(name))]
    # Debian keeps them out of PATH, in a folder per version.
    folders += sorted(DEBIAN.glob("*/bin"), key=lambda path: path.parent.name.zfill(9), reverse=True)
    return next(
        (folder for folder in folders if all((folder / name).exists() for name in ("initdb", "postgres"))),
        None,
    )


def _resolved(program: str) -> Path | None:
    path = shutil.which(program)
    return Path(path).resolve() if path else None


@contextmanager
def server(*, durable: bool = False) -> Iterator[str]:
    """Run a separate server, and yield the URL of an empty database.

    Args:
        durable: Wait for the disk at each commit, as in production.
    """
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        _start(Path(name), "" if durable else FAST)
        try:
            yield _url(Path(name))
        finally:
            _stop(Path(name))


class SharedServer:
    """The server of a test run. All processes of the run give the same `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def url(self) -> str:
        """The URL of an empty database. The server is started if no process of this run has started it."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with self._once("started") as is_first:
            if is_first:
                _start(self.folder, f"{FAST} {CONNECTIONS}")
        return _url(self.folder)

    @cached_property
    def migrated(self) -> str:
        """The name of a migrated database to copy. Nothing may connect to it."""
        name = "migrated"
        assert self.url  # Start the server first: the lock is not reentrant.
        with self._once(name) as is_first:
            if is_first:
                self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
                self.run(f"CREATE DATABASE {name}")
                database = Database(_url(self.folder, name))
                database.migrate()
                database.dispose()
        return name

    @contextmanager
    def database(self, copy_of: str = "template0") -> Iterator[str]:
        """Create a database, yield its URL, and drop it. Nothing may be connected to the database that is copied."""
        name = f"test_{secrets.token_hex(6)}"
        self.run(f'CREATE DATABASE {name} TEMPLATE "{copy_of}"')
        try:
            yield _url(self.folder, name)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def run(self, statement: str) -> None:
        """Run a statement outside of a transaction."""
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute(statement)

    def stop(self) -> None:
        """Stop the server and remove its folder, if it was started or half started."""
        if not self.folder.exists():
            return
        with FileLock(self.folder / "lock"):
            if (self.folder / "data" / "postmaster.pid").exists():
                _stop(self.folder)
        shutil.rmtree(self.folder)

    @contextmanager
    def _once(self, what: str) -> Iterator[bool]:
        """Yield True, under a lock, until the block has succeeded in one process of the run."""
        done = self.folder / f"{what}.done"
        with FileLock(self.folder / "lock"):
            yield not done.exists()
            done.touch()


def _url(folder: Path, database: str = "postgres") -> str:
    return f"postgresql://tuner@/{database}?host={folder}"


def _start(folder: Path, options: str) -> None:
    if os.geteuid() == 0:
        shutil.chown(folder, NOBODY)
    made = ["--username", "tuner", "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C"]
    _run(folder, "initdb", *made)
    options = f"-c listen_addresses= -c unix_socket_directories={folder} {options}"
    _run(
        folder,
        "pg_ctl",
        "--wait",
        f"--timeout={TIMEOUT_S}",
        "--log",
        f"{folder}/log",
        "--options",
        options,
        "start",
    )


def _stop(folder: Path) -> None:
    _run(folder, "pg_ctl", "--wait", f"--timeout={TIMEOUT_S}", "--mode", "immediate", "stop")


def _run(folder: Path, program: str, *words: str) -> None:
    bindir = programs()
    assert bindir is not None, "PostgreSQL is not installed (Debian: apt install postgresql)"
    as_nobody: dict[str, Any] = {"user": NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}
    command = [str(bindir / program), "--pgdata", str(folder / "data"), *words]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, **as_nobody)


SERVER = pytest.StashKey[SharedServer]()


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", {}).get("postgresql_folder")
    folder = Path(given or f"{tempfile.gettempdir()}/pg-{secrets.token_hex(4)}")
    config.stash[SERVER] = SharedServer(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each xdist worker the folder of the run's server."""
    node.workerinput["postgresql_folder"] = str(node.config.stash[SERVER].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server after the workers have ended. An interrupted run ends here, too."""
    if not hasattr(config, "workerinput"):
        config.stash[SERVER].stop()


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> SharedServer:
    """The server of this run, which starts when a database is asked for."""
    return pytestconfig.stash[SERVER]


@pytest.fixture
def postgres_url(postgres_server: SharedServer) -> Iterator[str]:
    """The URL of a migrated database for one test."""
    with postgres_server.database(postgres_server.migrated) as url:
        yield url


@pytest.fixture(scope="module")
def postgres_module_url(postgres_server: SharedServer) -> Iterator[str]:
    """The URL of a migrated database for the tests of one module."""
    with postgres_server.database(postgres_server.migrated) as url:
        yield url


@pytest.fixture
def postgres_empty_url(postgres_server: SharedServer) -> Iterator[str]:
    """The URL of an empty database for one test."""
    with postgres_server.database() as url:
        yield url
