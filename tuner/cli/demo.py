"""`tuner demo`: run a complete job on a temporary service, from submission to bill."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tuner import web
from tuner.cli import escape, render, tables, watch
from tuner.domain.access import DEFAULT_PROJECT
from tuner.domain.errors import Unavailable
from tuner.domain.time import RAY_START_S
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.client import Client

START_TIMEOUT_S = RAY_START_S + 60.0
#: Beginnings of the names of the settings that apply to the demo too: those of this machine, and those of user code.
KEPT_SETTINGS = (
    "TUNER_LOCAL_",
    "TUNER_CACHE_",
    "TUNER_MAX_",
    "TUNER_IMPORT_MEMORY_GIB",
    "TUNER_ALLOWED_MODULES",
    "TUNER_PASS_ENV",
    "TUNER_USER_",
)


def run(usd: float, trainable: str) -> None:
    console = Console(highlight=False)
    home = Settings.from_env().home / "demo"
    with service(home) as client:
        described = next((item for item in client.trainables().items if item.trainable == trainable), None)
        if described is None or described.search_space is None:
            raise Unavailable(
                f"{trainable} does not suggest a search space; use a trainable that `tuner trainables` lists with parameters"
            )
        job = client.submit(
            {
                "name": "demo",
                "trainable": trainable,
                "objective": described.objective,
                "search_space": described.search_space,
                "fidelity": {"unit": "epoch", "min": 1, "max": 27},
                "budget": {"usd": usd, "wall_clock": "4m"},
                "tags": {"project": "demo"},
            }
        )
        price = job.price
        console.print(f"Tuning {trainable} for {escape.usd(usd)}: {job.concurrency} trials at once, each")
        console.print(f"{escape.usd(price.trial_usd_per_hour)} an hour ({price.source}).\n")
        page = web.address(client.url, (home / "api_key").read_text().strip(), job.id)
        console.print(f"Watch the job in a browser: {page}\n", soft_wrap=True)
        watch.watch(client, job.id)
        ended = client.wait(job.id, progress=False)
        console.print("\n[bold]The job[/bold]", render.job(ended))
        console.print("\n[bold]The best configuration[/bold]", render.best(client.best(job.id)))
        console.print("\n[bold]The bill[/bold]")
        tables.show(render.bill(client.bill(job.id), most_expensive=5))
        console.print(
            f"\nThe data of this demo is kept in {home}. To look at the job again:\n"
            f"  export TUNER_HOME={home} PATH={Path(sys.executable).parent}:$PATH\n"
            f"  tuner serve &\n"
            f"  tuner trials {job.id}",
            soft_wrap=True,
        )


@contextmanager
def service(home: Path) -> Iterator[Client]:
    """Start a service with the home `home` on a free port, and stop it and its Ray cluster at the end of the `with` block."""
    for folder in (home.parent, home):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    environment = _environment(home, os.environ)
    with (home / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tuner.cli.main", "serve"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield _ready(process, home)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        subprocess.run(
            [sys.executable, "-m", "tuner.cli.main", "stop"],
            env=environment,
            capture_output=True,
            check=False,
        )


def _environment(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the temporary service: `environ` without the settings of the user's own service, such as its database."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("TUNER_") or name.startswith(KEPT_SETTINGS)
    }
    return {**kept, "TUNER_HOME": str(home), "TUNER_PORT": "0"}


def _ready(process: subprocess.Popen[str], home: Path) -> Client:
    from tuner.client import Client

    assert process.stdout is not None
    line = process.stdout.readline()
    if "http://" not in line:
        raise Unavailable(f"the service did not start; see {home / 'serve.log'}")
    url = line.split()[2].rstrip(",")
    client = Client(url, (home / "api_key").read_text().strip(), project=DEFAULT_PROJECT)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not client.is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Unavailable(f"the service is not ready; see {home / 'serve.log'}")
        time.sleep(0.2)
    return client
