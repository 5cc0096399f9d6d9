"""The commands and manifests of deploy/, as Kubernetes and systemd read them."""

import configparser
import shlex
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"


def ray_cluster() -> dict[str, Any]:
    (manifest,) = yaml.safe_load_all((DEPLOY / "kubernetes/base/ray-cluster.yaml").read_text())
    return dict(manifest)


def spot_pods() -> list[dict[str, Any]]:
    """Return the pod specification of each spot worker group."""
    groups = ray_cluster()["spec"]["workerGroupSpecs"]
    return [group["template"]["spec"] for group in groups if group["labels"]["ray.io/market-type"] == "spot"]


def sidecar() -> dict[str, Any]:
    (container,) = [candidate for candidate in spot_pods()[0]["containers"] if candidate["name"] == "notices"]
    return dict(container)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((DEPLOY / "systemd/tuner-watch.service").read_text())
    return parser


def commands() -> dict[str, list[str]]:
    """Return the command that starts the watcher, by the file that contains it."""
    return {
        "kubernetes/base/ray-cluster.yaml": sidecar()["command"],
        "systemd/tuner-watch.service": shlex.split(unit()["Service"]["ExecStart"]),
    }
