"""A PostgreSQL server of one's own, on a socket in a folder, from the programs that this machine has."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

# The server refuses to run as root.
NOBODY = "nobody"
TIMEOUT_S = 300
FAST = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off"


@cache
def programs() -> Path | None:
    """Where initdb and postgres are; None where this machine has none."""
    config = shutil.which("pg_config")
    if config is None:
        return None
    found = Path(
        subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True).stdout.strip()
    )
    return found if (found / "initdb").exists() and (found / "postgres").exists() else None


@contextmanager
def server(*, durable: bool = False) -> Iterator[str]:
    """The URL of an empty database. `durable`: it waits for the disk, as in production."""
    bindir = programs()
    assert bindir is not None
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        folder = Path(name)
        data = folder / "data"
        who = {"user": NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}
        if who:
            shutil.chown(folder, NOBODY)
        made = ["--username", "tuner", "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C"]
        _run([str(bindir / "initdb"), "--pgdata", str(data), *made], folder, who)
        options = f"-c listen_addresses= -c unix_socket_directories={folder} {'' if durable else FAST}"
        ctl = [str(bindir / "pg_ctl"), "--pgdata", str(data), "--wait", f"--timeout={TIMEOUT_S}"]
        _run([*ctl, "--log", str(folder / "log"), "--options", options, "start"], folder, who)
        try:
            yield f"postgresql://tuner@/postgres?host={folder}"
        finally:
            _run([*ctl, "--mode", "immediate", "stop"], folder, who)


def _run(words: list[str], folder: Path, who: dict[str, object]) -> None:
    subprocess.run(
        words,
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        **who,  # type: ignore[call-overload]
    )
