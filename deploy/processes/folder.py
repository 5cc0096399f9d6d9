"""The files of a deployment on this machine. A later deployment uses them to find and clear what an earlier one left."""

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
    """The folder of one deployment. Its processes carry a mark derived from `path`, so that only they are ever killed."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        tag = hashlib.sha256(f"processes:{os.getuid()}:{self.path}".encode()).hexdigest()[:8]
        self.mark = f"processes-{tag}/"
        # Short paths, because Ray creates sockets in them. The database's folder must be accessible to its user.
        self._scratch = Path(f"/tmp/tuner-{tag}")
        self.database = Path(f"/tmp/tuner-{tag}-database")
        self.logs, self.secrets = self.path / "logs", self.path / "secrets"
        self.api_key, self.client = self.path / "api_key", self.path / "client.sh"
        self._state, self._lock, self._killed = (
            self.path / "processes.json",
            self.path / "lock",
            self.path / "down",
        )

    def faults(self) -> list[str]:
        """Return the reasons why the folder cannot be used."""
        if not self.path.exists() or self.is_locked():
            return []
        if not self.path.is_dir() or (any(self.path.iterdir()) and not self._state.exists()):
            return [f"{self.path} is not a folder of a deployment: name another one with --state"]
        version = self.state().get("format")
        if self._state.exists() and version != FORMAT:
            return [
                f"{self.path} was left by another version (format {version}, this is {FORMAT}): stop it with that "
                f"version's `down`, or remove it, or name another one with --state"
            ]
        return []

    # The lock

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process.

        Raises:
            Refused: Another process has locked it.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            with self._lock.open("a+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise Refused(
                        f"a deployment runs in {self.path} (process {self.owner()}): stop it with `down`, or name another folder "
                        f"with --state"
                    ) from None
                if not _is_same_file(self._lock, file.fileno()):
                    continue  # another process has removed the file meanwhile
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                yield
                return

    def is_locked(self) -> bool:
        try:
            with self._lock.open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def owner(self) -> int:
        """Return the id of the process that has locked the folder, or 0 if none has."""
        try:
            return int(self._lock.read_text()) if self.is_locked() else 0
        except (OSError, ValueError):
            return 0

    # Content

    def create(self) -> dict[str, str]:
        """Create the content of the folder, and return the new secrets.

        Raises:
            Refused: A file of another user is in its place.
        """
        for place in (self._scratch, self.database):
            try:
                place.mkdir(mode=0o700)
            except FileExistsError:
                raise Refused(f"{place} belongs to another user: remove it") from None
        if os.geteuid() == 0:
            shutil.chown(self.database, "nobody")
        self.write({})
        for place in (self.logs, self.secrets, self._killed):
            place.mkdir(mode=0o700)
        return self._new_secrets()

    def _new_secrets(self) -> dict[str, str]:
        """Create the secrets with the same script as for containers."""
        script = shutil.copy(FILE.parent / "secrets.sh", self.path)
        subprocess.run([script], check=True, stdout=subprocess.DEVNULL)
        return dict(line.split("=", 1) for line in (self.path / ".env").read_text().splitlines())

    def machine(self, name: str) -> Path:
        """Return the folder of one part."""
        folder = self.path / "machines" / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

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

    # Killed parts

    def kill_part(self, name: str) -> int:
        """Kill a part at once, like a machine that loses power. Return the number of processes."""
        (self._killed / name).touch()
        return kill_marked(self._mark_of(name))

    def allow_start(self, name: str) -> None:
        (self._killed / name).unlink(missing_ok=True)

    def is_away(self, name: str) -> bool:
        return (self._killed / name).exists()

    # Processes

    def new_mark(self, name: str) -> str:
        return f"{self._mark_of(name)}{secrets.token_hex(8)}"

    def _mark_of(self, name: str) -> str:
        return f"{self.mark}{name}/"

    def kill(self, name: str) -> int:
        return kill_marked(self._mark_of(name))

    def clear(self, *, keep_logs: bool = False) -> int:
        """Kill all processes of the deployment and remove their files. Return the number of processes."""
        killed = kill_marked(self.mark)
        for place in (self._scratch, self.database):
            _remove(place)
        remaining = {self._lock, *((self.logs, self._state) if keep_logs else ())}
        for place in list(self.path.iterdir()) if self.path.is_dir() else []:
            if place not in remaining:
                _remove(place)
        return killed

    def unlock(self) -> None:
        """Unlock and remove the folder."""
        self._lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def wait_until_unlocked(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.is_locked() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.is_locked()


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _remove(place: Path) -> None:
    """Remove a file or folder, unless it belongs to another user."""
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.is_dir() and (os.geteuid() == 0 or place.stat().st_uid == os.getuid()):
        shutil.rmtree(place, ignore_errors=True)
