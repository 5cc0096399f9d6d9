"""Run `ray start` with fewer imports, and with hooks for settings that its command line does not have.

Usage: `python -m tuner.cluster.start_hook start OPTIONS`, in place of `ray start OPTIONS`. Ray calls the hook that the environment
variable `RAY_START_HOOK` names.
"""

import gc
import os
import sys
from pathlib import Path
from typing import Any

SOCKETS = "TUNER_NODE_SOCKETS"
# Modules with commands of Ray's command line that are not used here. Ray leaves commands out if their module cannot be imported. With their
# dependencies (pandas, FastAPI and aiohttp), these take two thirds of the 2.6 s of processor time that `ray start` needs for its imports.
UNUSED = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli")


def main() -> None:
    """Run Ray's command line without importing the modules `UNUSED`, whose commands are not needed here."""
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # importing a module that is None fails
    gc.disable()  # saves a tenth of the processor time of the imports
    from ray.scripts.scripts import main as ray_command

    gc.enable()
    ray_command()


def without_client_server(params: Any, head: bool) -> None:
    """Have the head start without a Ray Client server, and start its workers with our `setup_worker.py`.

    The Ray Client server is not used, and costs 45 MB and an open port. Ray's own program for starting workers imports Ray twice; ours
    imports it once.
    """
    params.ray_client_server_port = None
    params.setup_worker_path = str(Path(__file__).with_name("setup_worker.py"))


def on_the_loopback(params: Any, head: bool) -> None:
    """Enable a node to join a head on this machine at 127.0.0.1, and give the node its own sockets. This is a hook for a node.

    A node can join only if Ray's setting `ENABLE_RAY_CLUSTER` is on. But Ray then replaces 127.0.0.1, the only address on which our
    heads listen, by the machine's address. This hook turns the setting on and keeps 127.0.0.1.

    Without this hook, Ray gives a node's sockets names that no existing file has. Two nodes that start at once may then get the same
    names, and one of them fails. A node that restarts may get the names of another node's sockets. So this hook sets the names. Their
    prefix is in the environment variable `TUNER_NODE_SOCKETS`.
    """
    from ray._private import ray_constants, services

    without_client_server(params, head)
    params.raylet_socket_name = f"{os.environ[SOCKETS]}.raylet"
    params.plasma_store_socket_name = f"{os.environ[SOCKETS]}.store"
    ray_constants.ENABLE_RAY_CLUSTER = True
    services.resolve_ip_for_localhost = lambda host: host


if __name__ == "__main__":
    main()
