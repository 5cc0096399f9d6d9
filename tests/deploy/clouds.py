"""Cluster files of Ray's autoscaler, as each cloud's up.sh writes them."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.stand_ins import Scratch

REGIONS = {"aws": "us-east-1", "gcp": "us-central1", "azure": "eastus"}
CLOUDS = tuple(REGIONS)
WORDS = {
    "aws": ("us-east-1", "my-tuner-bucket"),
    "gcp": ("my-project", "us-central1", "my-tuner-bucket"),
    "azure": ("eastus", "mytunerstorage"),
}
PROGRAMS = {"aws": "aws", "gcp": "gcloud", "azure": "az"}
ASKS = ("head-bucket", "get-role", "get-instance-profile", "describe", "storage account show")
SAYS = (
    ("get-parameter", 0, "ami-0123456789abcdef0\n"),
    ("get-caller-identity", 0, "123456789012\n"),
    ("account keys list", 0, "c3RvcmFnZSBrZXk=\n"),
)


def scratch(cloud: str, folder: Path, *, there: bool = False) -> Scratch:
    """Return a scratch checkout whose cloud account is empty or, if `there`, has everything already."""
    checkout = Scratch(folder)
    checkout.copy(f"deploy/ray-{cloud}", "deploy/ray-up.sh", "deploy/ray-node.sh")
    for name in ("tuner", "trainables"):
        (checkout.checkout / name).mkdir()
        (checkout.checkout / name / "current.py").touch()
    program(checkout, cloud, there=there)
    checkout.stand_in("sleep")
    for name in ("ray", "pip"):
        checkout.stand_in(name, at=checkout.checkout / ".venv/bin")
    return checkout


def program(scratch: Scratch, cloud: str, *, there: bool) -> None:
    missing = () if there else tuple((words, 1, "") for words in ASKS)
    scratch.stand_in(PROGRAMS[cloud], SAYS + missing)


def up(scratch: Scratch, cloud: str, env: dict[str, str] | None = None) -> None:
    scratch.run(f"deploy/ray-{cloud}/up.sh", *WORDS[cloud], env=env)


def made(scratch: Scratch, cloud: str) -> dict[str, Any]:
    """Return the cluster file that Ray gets."""
    return dict(yaml.safe_load((scratch.checkout / f"deploy/ray-{cloud}/.cluster.yaml").read_text()))


@cache
def _cluster(cloud: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        checkout = scratch(cloud, Path(folder))
        up(checkout, cloud)
        return yaml.safe_dump(made(checkout, cloud))


def cluster(cloud: str) -> dict[str, Any]:
    return dict(yaml.safe_load(_cluster(cloud)))
