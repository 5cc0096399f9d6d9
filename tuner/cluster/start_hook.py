"""Run `ray start` with less to import, and the hooks that it loads (`RAY_START_HOOK`) to set what its command line cannot.

Usage: `python -m tuner.cluster.start_hook start OPTIONS`, in place of `ray start OPTIONS`.
"""

import gc
import os
import sys
from pathlib import Path
from typing import Any

SOCKETS = "TUNER_NODE_SOCKETS"
# Groups of commands that Ray's command line leaves out if they cannot be imported. With what they need (pandas, FastAPI
# and aiohttp), they take two thirds of the 2.6 s of processor time that `ray start` needs for its imports.
UNUSED = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli")


def main() -> None:
    """Run Ray's command line without the commands in `UNUSED`."""
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # importing a module that is None fails
    gc.disable()  # saves a tenth of the processor time of the imports
    from ray.scripts.scripts import main as ray_command

    gc.enable()
    ray_command()


def without_client_server(params: Any, head: bool) -> None:
    """Do not start the Ray Client server, which costs 45 MB and an open port and is not used.

    Start workers without importing Ray twice.
    """
    params.ray_client_server_port = None
    params.setup_worker_path = str(Path(__file__).with_name("setup_worker.py"))


def on_the_loopback(params: Any, head: bool) -> None:
    """Prepare a node that joins a head of this machine.

    If clusters are "not enabled", Ray refuses to join. If they are enabled, Ray replaces 127.0.0.1, the only
    address of our heads, by the machine's address. This hook enables clusters and keeps the address.

    Ray numbers the sockets of a machine's nodes by the files that exist. If two nodes start at once, one fails, and a
    node that restarts may get the sockets of another. So this hook gives each node its own sockets, whose
    path prefix is in the environment.
    """
    from ray._private import ray_constants, services

    without_client_server(params, head)
    params.raylet_socket_name = f"{os.environ[SOCKETS]}.raylet"
    params.plasma_store_socket_name = f"{os.environ[SOCKETS]}.store"
    ray_constants.ENABLE_RAY_CLUSTER = True
    services.resolve_ip_for_localhost = lambda host: host


if __name__ == "__main__":
    main()
