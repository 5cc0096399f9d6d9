"""The deployment files start the watcher of preemption notices with valid arguments, in a pod that fits it."""

from pathlib import Path
from typing import Any

from tests import deployed
from tuner.cluster.notice_watch import parser, sources_of

MODULE = "tuner.cluster.notice_watch"


def options(words: list[str]) -> list[str]:
    python, *rest = words[words.index("-m") - 1 :]
    assert Path(python).name == "python"
    assert rest[:2] == ["-m", MODULE]
    return rest[2:]


def test_watcher_accepts_the_commands_of_the_deployment_files() -> None:
    for command in deployed.commands().values():
        args = parser().parse_args(options(command))
        assert args.address.endswith(":6379")
        assert sources_of(args).cloud == "aws"


def test_sidecar_shares_the_session_directory_and_the_token_of_ray() -> None:
    (pod,) = deployed.spot_pods()
    worker, sidecar = pod["containers"]
    assert sidecar == deployed.sidecar()
    assert sidecar["image"] == worker["image"]
    assert (
        sidecar["volumeMounts"]
        == worker["volumeMounts"]
        == [{"name": "ray-session", "mountPath": "/tmp/ray"}]
    )
    assert pod["volumes"] == [{"name": "ray-session", "emptyDir": {}}]
    name = deployed.ray_cluster()["metadata"]["name"]
    env = {variable["name"]: variable for variable in sidecar["env"]}
    assert env["RAY_AUTH_MODE"]["value"] == deployed.ray_cluster()["spec"]["authOptions"]["mode"]
    secret = deployed.ray_cluster()["spec"]["authOptions"]["secretName"]
    assert env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": secret, "key": "auth_token"}
    args = parser().parse_args(options(sidecar["command"]))
    assert args.address == f"{name}-head-svc:6379"
    assert args.node_id == ""


def test_watcher_grace_is_shorter_than_the_grace_period_of_the_pod() -> None:
    (pod,) = deployed.spot_pods()
    args = parser().parse_args(options(deployed.sidecar()["command"]))
    drain = {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}
    seconds = float(drain["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    assert args.grace <= seconds < pod["terminationGracePeriodSeconds"]
    assert not args.release, "other pods may be on the machine"


def test_worker_groups_have_labels_of_market_and_price() -> None:
    spec = deployed.ray_cluster()["spec"]
    labels: list[dict[str, Any]] = [group["labels"] for group in spec["workerGroupSpecs"]]
    assert [group_labels["ray.io/market-type"] for group_labels in labels] == ["on-demand", "spot"]
    assert all(
        float(group_labels["usd-per-hour"]) > 0 and group_labels["instance-type"] for group_labels in labels
    )
    assert all(isinstance(value, str) for group_labels in labels for value in group_labels.values())


def test_unit_always_restarts_the_watcher() -> None:
    watcher_unit = deployed.unit()
    assert watcher_unit["Service"]["Restart"] == "always"
    assert watcher_unit["Service"]["User"]
    assert watcher_unit["Install"]["WantedBy"] == "multi-user.target"
