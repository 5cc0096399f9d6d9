"""Loaded by `ray start` (`RAY_START_HOOK`) to leave out what the command line cannot leave out."""

from typing import Any


def without_client_server(params: Any, head: bool) -> None:
    """No Ray Client server: nobody here speaks it, and it costs 45 MB and an open port."""
    params.ray_client_server_port = None
