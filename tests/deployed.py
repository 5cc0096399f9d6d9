"""The commands and manifests of deploy/, as Kubernetes and systemd read them."""

import configparser
import shlex
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"


def ray_cluster() -> dict[str, Any]:
    (found,) = yaml.safe_load_all((DEPLOY / "kubernetes/base/ray-cluster.yaml").read_text())
    return dict(found)


def spot_pods() -> list[dict[str, Any]]:
    """Return the pod specification of each spot worker group."""
    groups = ray_cluster()["spec"]["workerGroupSpecs"]
    return [one["template"]["spec"] for one in groups if one["labels"]["ray.io/market-type"] == "spot"]


def sidecar() -> dict[str, Any]:
    (found,) = [one for one in spot_pods()[0]["containers"] if one["name"] == "notices"]
    return dict(found)


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string((DEPLOY / "systemd/tuner-watch.service").read_text())
    return found


def commands() -> dict[str, list[str]]:
    """Return the command that starts the watcher, by the file that contains it."""
    return {
        "kubernetes/base/ray-cluster.yaml": sidecar()["command"],
        "systemd/tuner-watch.service": shlex.split(unit()["Service"]["ExecStart"]),
    }
