"""Ray's own validator accepts the autoscaler's cluster files, and their machines are labelled with market and price."""

import copy
import json
import os
import re
import shlex
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.clouds import CLOUDS, REGIONS, cluster
from tests.deploy.files import DEPLOY, ROOT, labels_of
from tests.deploy.stand_ins import Scratch
from tests.deploy.test_slurm import until
from tuner.cluster import nodes as its
from tuner.cluster.node_types import read_node_types
from tuner.cluster.notice_watch import parser, sources_of
from tuner.domain.money import Price
from tuner.planning.catalogue import Catalogue
from tuner.service.catalogue import catalogue
from tuner.settings import Settings

NODE = (DEPLOY / "ray-node.sh").read_text()


@pytest.fixture(scope="module")
def prices() -> Catalogue:
    return catalogue(Settings.from_env({}))


def validate(config: dict[str, Any]) -> None:
    """Check a cluster file as `ray up` does. Raise jsonschema.ValidationError if it is invalid."""
    from ray.autoscaler._private.util import prepare_config, validate_config  # takes half a second

    validate_config(prepare_config(config))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_ray_accepts_the_cluster_file(cloud: str) -> None:
    validate(cluster(cloud))


def test_ray_refuses_an_unknown_key() -> None:
    wrong = copy.deepcopy(cluster("aws"))
    wrong["idle_timeout"] = 5
    with pytest.raises(jsonschema.ValidationError, match="idle_timeout"):
        validate(wrong)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_cluster_file_has_no_unfilled_placeholders(cloud: str) -> None:
    known = {"CPU", "GPU", "DELETE", "SPOT", "PERSISTENT"}
    left = set(re.findall(r"\b[A-Z][A-Z_]{2,}\b", yaml.safe_dump(cluster(cloud)))) - known
    assert not left


@pytest.mark.parametrize("cloud", CLOUDS)
def test_machine_labels_match_the_market_and_the_catalogue_price(cloud: str, prices: Catalogue) -> None:
    types = cluster(cloud)["available_node_types"]
    assert types["head"]["resources"] == {"CPU": 0}
    assert its.market_of(types["head"]["labels"]) == "on_demand"
    for name, market in (("on-demand", "on_demand"), ("spot", "spot")):
        labels, config = types[name]["labels"], str(types[name]["node_config"])
        assert its.market_of(labels) == market
        assert its.region_of(labels) == REGIONS[cloud]
        assert f"'{its.instance_type_of(labels)}'" in config, "what is paid for is what is made"
        assert ("spot" in config.lower()) == (market == "spot")
        usd_per_hour = its.usd_per_hour(labels)
        assert usd_per_hour is not None
        (listed,) = [
            offer
            for offer in prices.find(instance_type=its.instance_type_of(labels))
            if offer.region == REGIONS[cloud]
        ]
        assert listed.price(market) == Price.from_usd_per_hour(usd_per_hour)
        assert types[name]["min_workers"] == 0, "nothing is there while nothing runs"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_cluster_file_calls_existing_script_commands_and_extras(cloud: str) -> None:
    cluster_file = cluster(cloud)
    (install,) = cluster_file["setup_commands"]
    *_, word, extras = install.split()
    assert word == "install"
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{name} = \[", project, re.MULTILINE) for name in extras.split(","))
    assert cloud in extras.split(","), "what the autoscaler needs on the head"
    assert cluster_file["head_start_ray_commands"] == ["bash ~/tuner/deploy/ray-node.sh head"]
    assert cluster_file["worker_start_ray_commands"] == [f"bash ~/tuner/deploy/ray-node.sh worker {cloud}"]
    for called in ("install", "head", "worker"):
        assert f"\n{called})\n" in NODE


@pytest.mark.parametrize("cloud", CLOUDS)
def test_node_script_starts_the_watcher_with_valid_arguments(cloud: str) -> None:
    args = parser().parse_args(watcher(NODE, {"RAY_HEAD_IP": "10.0.0.1", "2": cloud}))
    assert (args.address, sources_of(args).cloud) == ("10.0.0.1:6379", cloud)


def test_slurm_warning_is_longer_than_watcher_grace_and_labels_are_set() -> None:
    text = (DEPLOY / "slurm/tuner.sbatch").read_text()
    args = parser().parse_args(watcher(text, {"head": "10.0.0.1", "ray_port": "6379", "grace": "100"}))
    assert (args.address, sources_of(args).cloud) == ("10.0.0.1:6379", None)
    match = re.search(r"#SBATCH --signal=B:TERM@(\d+)", text)
    assert match is not None
    assert args.grace < float(match[1])
    (words,) = re.findall(r'^labels="(.*)"$', text, re.MULTILINE)
    labels = labels_of(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", words))
    assert its.usd_per_hour(labels)
    assert its.market_of(labels) == "on_demand"
    assert its.instance_type_of(labels) != its.LOCAL


def test_head_listens_at_the_address_of_the_service() -> None:
    assert "TUNER_RAY_ADDRESS=http://127.0.0.1:8265" in NODE
    assert "--dashboard-host=127.0.0.1" in NODE


def watcher(text: str, values: dict[str, str]) -> list[str]:
    """Return the options with which a script starts the watcher."""
    (line,) = re.findall(
        r"python -m tuner\.cluster\.notice_watch (.*?)(?:</dev/null|&)", text.replace("\\\n", "")
    )
    return shlex.split(re.sub(r"\$(\w+)", lambda m: values[m[1]], line))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_service_reads_node_types_from_the_autoscaler_file(cloud: str) -> None:
    node_types = read_node_types((DEPLOY / f"ray-{cloud}" / "cluster.yaml").read_text(), cloud)
    assert {node_type.name: node_type.labels["ray.io/market-type"] for node_type in node_types.types} == {
        "on-demand": "on-demand",
        "spot": "spot",
    }
    assert all(node_type.cpus > 0 and node_type.at_most > 0 for node_type in node_types.types)
    assert "TUNER_NODE_TYPES=$HOME/ray_bootstrap_config.yaml" in NODE
    assert '--autoscaling-config="$HOME/ray_bootstrap_config.yaml"' in NODE


def test_service_starts_on_the_head_after_the_previous_one_has_ended(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    scratch.copy("deploy/ray-node.sh")
    scratch.home.mkdir()
    (scratch.home / "tuner.env").touch()
    scratch.stand_in("ray")
    # The first service ends only after the script has begun to wait for its end.
    scratch.stand_in("tuner", blocks=("serve",), ends_after="sleep 0.5")
    scratch.stand_in("sleep", waits=(("0.5", "ended tuner"),))

    def calls() -> list[str]:
        lines = scratch.calls.read_text().splitlines()
        return [line for line in (" ".join(json.loads(line)[0]) for line in lines) if "tuner serve" in line]

    services = []
    try:
        for started in (1, 2):
            scratch.run("deploy/ray-node.sh", "head")
            services.append(int((scratch.home / "tuner.pid").read_text()))
            until(lambda count=started: calls().count("tuner serve") == count)
        assert calls() == ["tuner serve", "ended tuner serve", "tuner serve"]
    finally:
        for service in services:
            with suppress(ProcessLookupError):
                os.kill(service, signal.SIGKILL)


def test_machine_installs_no_files_of_another_version(tmp_path: Path) -> None:
    """Neither those that Ray's sync left nor those that setuptools built."""
    scratch = Scratch(tmp_path)
    scratch.copy("deploy/ray-node.sh")
    (scratch.checkout / "deploy/.files").write_text("tuner/current.py\ntrainables/own.py\n")
    for name in ("tuner/current.py", "tuner/old one.py", "trainables/own.py", "build/lib/tuner/old.py"):
        path = scratch.checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("rsync", "python3"):
        scratch.stand_in(name)
    scratch.stand_in("python", at=scratch.home / "venv/bin")
    listed = scratch.pip_that_lists_modules(at=scratch.home / "venv/bin")
    for _ in range(2):
        scratch.run("deploy/ray-node.sh", "install", "s3")
        assert sorted(listed.read_text().splitlines()) == ["./trainables/own.py", "./tuner/current.py"]


def test_only_the_service_gets_the_url_of_the_database(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    scratch.copy("deploy/ray-node.sh")
    scratch.home.mkdir()
    settings = scratch.home / "tuner.env"
    settings.write_text(
        "TUNER_STORAGE=s3://bucket/tuner\nTUNER_DATABASE_URL=postgresql://tuner:secret@db/tuner\n"
    )
    settings.chmod(0o600)
    (tmp_path / "bin").mkdir()
    for name in ("ray", "tuner", "python"):
        program = tmp_path / "bin" / name
        env_file = f"{tmp_path}/{name}-$1.env"
        program.write_text(f'#!/bin/sh\nenv >"{env_file}.part"\nmv "{env_file}.part" "{env_file}"\n')
        program.chmod(0o755)

    def environment(name: str) -> str:
        path = tmp_path / f"{name}.env"
        until(path.exists)
        text = path.read_text()
        path.unlink()
        assert "TUNER_STORAGE=s3://bucket/tuner" in text
        return text

    scratch.run("deploy/ray-node.sh", "head")
    assert "secret" in environment("tuner-serve")
    assert "secret" not in environment("ray-start")
    scratch.run("deploy/ray-node.sh", "worker", "aws", env={"RAY_HEAD_IP": "10.0.0.1"})
    assert "secret" not in environment("ray-start")
    assert "secret" not in environment("python--m")
    assert settings.read_text() == "TUNER_STORAGE=s3://bucket/tuner\n"
    assert settings.stat().st_mode & 0o777 == 0o600
