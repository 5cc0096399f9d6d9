"""Check that a cluster has the same versions of Ray and Python as this installation.

The versions must match because drivers run with the cluster's Ray and Python, and exchange pickled data with it.
"""

import platform
from importlib.metadata import version
from typing import Any

from tuner.cluster.dashboard import Dashboard, RayUnavailable
from tuner.cluster.head import LocalHead
from tuner.domain.errors import Unavailable

IN_BOTH = "install the same version in both, for example with one image for the service and all nodes"
_STOP = "run `tuner stop`; the service then starts its Ray again, and running jobs continue from their newest checkpoints"
_END_CLUSTER = (
    "end `tuner cluster` with Ctrl-C and start it again; running jobs continue from their newest checkpoints"
)


class RayUnfit(Unavailable):
    """The Ray cluster is of another version."""


def fix_of_local(local: LocalHead) -> str:
    """Return how to start the local Ray again, which continues with the version that it was started with when another one is installed."""
    return _END_CLUSTER if local.is_for_a_cluster() else _STOP


def ray_of(dashboard: Dashboard) -> str:
    """Return the cluster's version of Ray. Raise RayUnavailable if it does not answer."""
    return str(dashboard.get("/api/version")["ray_version"])


def version_mismatch(dashboard: Dashboard, fix: str) -> str | None:
    """Return a message that says which version differs and what to do (`fix`), or None if all versions match.

    Raise RayUnavailable if the cluster does not answer.
    """
    theirs, ours = ray_of(dashboard), version("ray")
    if theirs != ours:
        return f"{dashboard.url} has Ray {theirs}, but the service has Ray {ours}: {fix}"
    try:
        facts: dict[str, Any] = dashboard.get("/api/v0/cluster_metadata")["data"]
        their_python = facts.get("pythonVersion") or facts.get("python_version")
    except (RayUnavailable, KeyError, TypeError):
        their_python = None
    our_python = platform.python_version()
    if their_python is not None and str(their_python).split(".")[:2] != our_python.split(".")[:2]:
        return f"{dashboard.url} has Python {their_python}, but the service has Python {our_python}: {fix}"
    return None
