"""Trainables that look at what they should not see, and use more than they may."""

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SLEEPS = "import time; time.sleep(1000)  # "


def looks_around(config: dict[str, Any]) -> dict[str, str]:
    """Return what this process can see of its own environment and of the process that forked it."""
    mine, parents = (Path(f"/proc/{pid}/environ").read_bytes() for pid in ("self", os.getppid()))
    return {
        "environ": "\n".join(f"{name}={value}" for name, value in os.environ.items()),
        "mine": mine.replace(b"\0", b"\n").decode(),
        "parents": parents.replace(b"\0", b"\n").decode(),
        "descriptors": ",".join(sorted({_kind(fd) for fd in os.listdir("/proc/self/fd")})),
        "tmp": tempfile.gettempdir(),
        "files": str(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        "core": str(resource.getrlimit(resource.RLIMIT_CORE)),
        "privileges": str(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)),
    }


def _kind(fd: str) -> str:
    """Return the kind of an open file, or its number if it is a standard stream."""
    try:
        link_target = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return "listing"
    return fd if int(fd) < 3 else link_target.partition(":")[0]


def opens_files(config: dict[str, Any]) -> None:
    held = []
    while True:
        held.append(open(os.devnull))  # noqa: SIM115


def multiplies(config: dict[str, Any]) -> None:
    """Start 60 processes, each in its own session, as daemons are."""
    for _ in range(60):
        subprocess.Popen([sys.executable, "-S", "-c", SLEEPS + config["mark"]], start_new_session=True)
    time.sleep(1000)


def threads(config: dict[str, Any]) -> None:
    import threading

    for _ in range(60):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    time.sleep(1000)


def eats(config: dict[str, Any]) -> None:
    """Allocate 900 MB, which does no harm to the machine."""
    eaten = [bytearray(os.urandom(1 << 20) * 30) for _ in range(30)]
    time.sleep(1000 + len(eaten))


def shares_its_data(config: dict[str, Any]) -> dict[str, float]:
    """Keep 200 MiB of data, as a dataset in memory, in this process and in five forked ones, as the workers of a data loader do."""
    data = bytearray(os.urandom(1 << 20) * 200)
    readers = []
    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            time.sleep(1.5)  # several checks of the limit
            os._exit(0)
        readers.append(pid)
    for pid in readers:
        os.waitpid(pid, 0)
    return {"acc": len(data) / (1 << 20)}


def eats_as_a_daemon(config: dict[str, Any]) -> None:
    """Start a daemon that allocates memory. Its parent exits at once, so that it does not descend from this process any more."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            eats(config)
        os._exit(0)
    time.sleep(1000)


def prints_after_its_end(config: dict[str, Any]) -> dict[str, float]:
    """Leave a process in a session of its own that prints without pause."""
    subprocess.Popen(["yes"], start_new_session=True)
    Path(config["marker"]).touch()
    time.sleep(1000)
    return {"acc": 1.0}


def leaves_a_daemon(config: dict[str, Any]) -> None:
    """Start a process in a session of its own, and write its id to a file."""
    daemon = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    Path(config["marker"]).write_text(str(daemon.pid))
    time.sleep(60)


def locks_its_directory(config: dict[str, Any]) -> dict[str, float]:
    """Copy a read-only folder over the working directory, as copytree does with the folder of a package."""
    if config["how"] == "mode":
        Path("file").touch()
        Path.cwd().chmod(0o500)
    else:
        here = Path.cwd()
        here.rename(here.with_name("moved"))
        here.symlink_to(config["target"]) if config["how"] == "link" else here.touch()
    return {"acc": 1.0}


def leaves_files(config: dict[str, Any]) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp())
    (folder / "data").write_text("x")
    Path(config["marker"]).write_text(str(folder))
    if config["killed"]:
        time.sleep(1000)
    return {"acc": 1.0}
