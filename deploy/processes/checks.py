"""Checks of this machine before a deployment. Each fault says how to fix it."""

import importlib.util
import pwd
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from deploy.processes.parts import NOBODY, RAY_PORT, Part, postgres_programs

MODULES = {"moto": "dev", "s3fs": "s3", "psycopg": "postgresql"}


def faults_of_machine() -> Iterator[str]:
    if sys.platform != "linux":
        yield "this deployment needs Linux, where all of 127.0.0.0/8 is loopback: use deploy/compose on this machine"
        return
    for name, extra in MODULES.items():
        if importlib.util.find_spec(name) is None:
            yield f"{name} is missing: pip install -c constraints.txt -e '.[{extra}]'"
    for name in ("tuner", "ray"):
        if not (Path(sys.executable).parent / name).exists():
            yield f"`{name}` is not in the folder of {sys.executable}: run this with the Python that the service is installed for"
    if postgres_programs() is None:
        yield "PostgreSQL's programs are missing: install them (Debian: apt install postgresql)"
    if shutil.which("prometheus") is None:
        yield "Prometheus is missing: install it (Debian: apt install prometheus)"
    if NOBODY not in {user.pw_name for user in pwd.getpwall()}:
        yield f"the user {NOBODY}, as which PostgreSQL runs if the caller is root, does not exist: run this as another user"


def faults_of_network(network: str) -> Iterator[str]:
    numbers = re.fullmatch(r"127\.(\d{1,3})\.(\d{1,3})", network)
    if numbers is None or any(int(number) > 255 for number in numbers.groups()) or network == "127.0.0":
        yield f"--network {network}: give the first three numbers of loopback addresses, such as 127.77.0; 127.0.0 is shared"


def faults_of_places(parts: Iterable[Part], ray_port: int) -> Iterator[str]:
    """Yield a fault for each address that this machine lacks, and for each port in use."""
    for part in parts:
        for port in part.listens:
            if why := _taken(part.address, port):
                yield (
                    f"{part.name} cannot listen on {part.address}:{port} ({why}): end the process that uses the port, "
                    "or give other addresses with --network"
                )
    if why := _taken("0.0.0.0", ray_port):
        other = f"another port with --ray-port (default: {RAY_PORT})"
        yield f"ray-head cannot listen on port {ray_port} ({why}), which Ray opens at all addresses: end the process that uses it, or give {other}"


def _taken(address: str, port: int) -> str:
    """Return why the port cannot be opened, or an empty string if it is free."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
            trial.listen()
        except OSError as error:
            return str(error.strerror)
    return ""
