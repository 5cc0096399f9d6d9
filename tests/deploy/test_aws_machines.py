"""Ray's own launcher requests the cluster's machines from an emulated AWS, and they match their labels and prices."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.clouds import REGIONS, cluster

pytestmark = pytest.mark.extended

Machines = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An emulated account with the roles that up.sh creates."""
    import boto3  # importing these two takes a second
    from moto import mock_aws

    with pytest.MonkeyPatch.context() as patch, mock_aws():
        # Ray stores its new SSH key in the home directory.
        home = tmp_path_factory.mktemp("home")
        (home / ".ssh").mkdir()
        patch.setenv("HOME", str(home))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "none")
        patch.setenv("AWS_DEFAULT_REGION", REGIONS["aws"])
        for role in ("tuner-head", "tuner-worker"):
            boto3.client("iam").create_instance_profile(InstanceProfileName=role)
        yield boto3.client("ec2")


@pytest.fixture(scope="module")
def machines(account: Any) -> Machines:
    """Return one machine of each node type, by its name."""
    from ray.autoscaler._private.aws.config import bootstrap_aws  # takes half a second
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.util import prepare_config

    config = bootstrap_aws(prepare_config(copy.deepcopy(cluster("aws"))))
    provider = AWSNodeProvider(config["provider"], config["cluster_name"])
    for name, kind in config["available_node_types"].items():
        provider.create_node(kind["node_config"], {"ray-user-node-type": name}, 1)
    instances = [
        instance for made in account.describe_instances()["Reservations"] for instance in made["Instances"]
    ]
    return {
        next(t["Value"] for t in instance["Tags"] if t["Key"] == "ray-user-node-type"): instance
        for instance in instances
    }


def test_machines_have_the_instance_type_and_market_of_their_labels(machines: Machines) -> None:
    types = cluster("aws")["available_node_types"]
    assert set(machines) == set(types) == {"head", "on-demand", "spot"}
    for name in ("on-demand", "spot"):
        assert machines[name]["InstanceType"] == types[name]["labels"]["instance-type"]
        market = machines[name].get("InstanceLifecycle", "on-demand")
        assert market == types[name]["labels"]["ray.io/market-type"]
    assert "InstanceLifecycle" not in machines["head"], "drivers are not taken away"


def test_machines_have_their_own_roles_and_workers_require_imds_tokens(machines: Machines) -> None:
    roles = {
        name: machine["IamInstanceProfile"]["Arn"].rpartition("/")[2] for name, machine in machines.items()
    }
    assert roles == {"head": "tuner-head", "on-demand": "tuner-worker", "spot": "tuner-worker"}
    for name in ("on-demand", "spot"):
        assert machines[name]["MetadataOptions"]["HttpTokens"] == "required", "user code runs there"


def test_only_ssh_is_open_to_the_outside(account: Any, machines: Machines) -> None:
    groups = {group["GroupId"] for machine in machines.values() for group in machine["SecurityGroups"]}
    (group,) = account.describe_security_groups(GroupIds=list(groups))["SecurityGroups"]
    outside = [
        permission
        for permission in group["IpPermissions"]
        if permission["IpRanges"] or permission["Ipv6Ranges"]
    ]
    inside = [permission for permission in group["IpPermissions"] if permission["UserIdGroupPairs"]]
    assert [(permission["FromPort"], permission["ToPort"]) for permission in outside] == [(22, 22)]
    assert [pair["GroupId"] for permission in inside for pair in permission["UserIdGroupPairs"]] == list(
        groups
    )


def test_ssh_key_file_is_private(machines: Machines) -> None:
    assert machines
    (key,) = [path for path in (Path.home() / ".ssh").iterdir() if path.suffix == ".pem"]
    assert key.stat().st_mode & 0o077 == 0
