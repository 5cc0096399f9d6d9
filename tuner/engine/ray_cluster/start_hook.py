"""Loaded by `ray start` (`RAY_START_HOOK`) to do what its command line cannot say."""

import os
from pathlib import Path
from typing import Any

SOCKETS = "TUNER_NODE_SOCKETS"


def without_client_server(params: Any, head: bool) -> None:
    """Start no Ray Client server, which nobody here uses and which costs 45 MB and an open port. Start workers without importing Ray
    twice."""
    params.ray_client_server_port = None
    params.setup_worker_path = str(Path(__file__).with_name("setup_worker.py"))


def on_the_loopback(params: Any, head: bool) -> None:
    """For a node that joins a head of this machine. Ray refuses to join where clusters are "not enabled"; where they are, it
    replaces 127.0.0.1, on which our heads listen and on nothing else, by the machine's address. Here it stays what it is.

    Ray numbers the sockets of a machine's nodes by what files there are, so that of two which start at once one dies, and one that
    starts anew may be given those of another. Here each has its own, which begin with what the environment says."""
    from ray._private import ray_constants, services

    without_client_server(params, head)
    params.raylet_socket_name = f"{os.environ[SOCKETS]}.raylet"
    params.plasma_store_socket_name = f"{os.environ[SOCKETS]}.store"
    ray_constants.ENABLE_RAY_CLUSTER = True
    services.resolve_ip_for_localhost = lambda host: host
