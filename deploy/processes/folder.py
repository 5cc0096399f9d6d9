"""What a deployment keeps on this machine, by which the next one finds and clears what is left of it."""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.processes.compose import FILE, Refused
from tuner.cluster.processes import kill_marked

FORMAT = 1


class Folder:
    """One for each `path`. All processes of its deployment are marked with it, so that nothing else is ever ended."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        tag = hashlib.sha256(f"processes:{os.getuid()}:{self.path}".encode()).hexdigest()[:8]
        self.mark = f"processes-{tag}/"
        # Short, because Ray puts sockets below it; the database's where its user reaches it.
        self._scratch = Path(f"/tmp/tuner-{tag}")
        self.database = Path(f"/tmp/tuner-{tag}-database")
        self.logs, self.secrets = self.path / "logs", self.path / "secrets"
        self.api_key, self.client = self.path / "api_key", self.path / "client.sh"
        self._state, self._lock, self._down = (
            self.path / "processes.json",
            self.path / "lock",
            self.path / "down",
        )

    def faults(self) -> list[str]:
        """Why it cannot be used."""
        if not self.path.exists() or self.is_kept():
            return []
        if not self.path.is_dir() or (any(self.path.iterdir()) and not self._state.exists()):
            return [f"{self.path} is not a folder of a deployment: name another one by --state"]
        found = self.state().get("format")
        if self._state.exists() and found != FORMAT:
            return [
                f"{self.path} was left by another version (format {found}, this is {FORMAT}): end what runs of it with that "
                f"version's `down`, or remove it, or name another one by --state"
            ]
        return []

    # Who keeps it

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """For one process at a time. Raises Refused where another one does."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            with self._lock.open("a+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise Refused(
                        f"a deployment runs in {self.path} (process {self.keeper()}): end it by `down`, or name another folder "
                        f"by --state"
                    ) from None
                if not _is(self._lock, file.fileno()):
                    continue  # another one has removed it meanwhile
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                yield
                return

    def is_kept(self) -> bool:
        try:
            with self._lock.open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def keeper(self) -> int:
        """The process that keeps it, 0 where none does."""
        try:
            return int(self._lock.read_text()) if self.is_kept() else 0
        except (OSError, ValueError):
            return 0

    # What is in it

    def make(self) -> dict[str, str]:
        """Everything anew, with new secrets, which are answered. Raises Refused where somebody else's file is in its place."""
        for place in (self._scratch, self.database):
            try:
                place.mkdir(mode=0o700)
            except FileExistsError:
                raise Refused(f"{place} belongs to somebody else: remove it") from None
        if os.geteuid() == 0:
            shutil.chown(self.database, "nobody")
        self.write({})
        for place in (self.logs, self.secrets, self._down):
            place.mkdir(mode=0o700)
        return self._new_secrets()

    def _new_secrets(self) -> dict[str, str]:
        """By the same script as for containers."""
        made = shutil.copy(FILE.parent / "secrets.sh", self.path)
        subprocess.run([made], check=True, stdout=subprocess.DEVNULL)
        return dict(line.split("=", 1) for line in (self.path / ".env").read_text().splitlines())

    def machine(self, name: str) -> Path:
        """What a part has of its own."""
        found = self.path / "machines" / name
        found.mkdir(parents=True, exist_ok=True, mode=0o700)
        return found

    def ray(self, name: str) -> Path:
        return self._scratch / name

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def write(self, parts: dict[str, Any]) -> None:
        draft = self._state.with_suffix(".new")
        draft.write_text(json.dumps({"format": FORMAT, "parts": parts}, indent=1))
        draft.replace(self._state)

    def state(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._state.read_text()))
        except (OSError, ValueError):
            return {}

    # Parts that were taken away

    def take_away(self, name: str) -> int:
        """At once, as a machine that loses its power; answers how many processes that were."""
        (self._down / name).touch()
        return kill_marked(self._mark_of(name))

    def bring_back(self, name: str) -> None:
        (self._down / name).unlink(missing_ok=True)

    def is_away(self, name: str) -> bool:
        return (self._down / name).exists()

    # Its processes

    def new_mark(self, name: str) -> str:
        return f"{self._mark_of(name)}{secrets.token_hex(8)}"

    def _mark_of(self, name: str) -> str:
        return f"{self.mark}{name}/"

    def kill(self, name: str) -> int:
        return kill_marked(self._mark_of(name))

    def clear(self, *, keep_logs: bool = False) -> int:
        """Ends every process that is left and removes what they had; answers how many processes that were."""
        killed = kill_marked(self.mark)
        for place in (self._scratch, self.database):
            _remove(place)
        kept = {self._lock, *((self.logs, self._state) if keep_logs else ())}
        for place in list(self.path.iterdir()) if self.path.is_dir() else []:
            if place not in kept:
                _remove(place)
        return killed

    def leave(self) -> None:
        """The last thing that its keeper does."""
        self._lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def wait_until_left(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.is_kept() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.is_kept()


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _remove(place: Path) -> None:
    """Where it is ours, or the database's as root has made it."""
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.is_dir() and (os.geteuid() == 0 or place.stat().st_uid == os.getuid()):
        shutil.rmtree(place, ignore_errors=True)
