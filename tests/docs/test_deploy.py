"""What deploy/ and the pages say to type is what the programs take, and the manifests fit together."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests import deployed
from tuner.engine.ray_node.watch import main, parser, sources_of

ROOT = Path(__file__).parents[2]
MODULE = "tuner.engine.ray_node.watch"
PAGES = [ROOT / "docs/interruption-notices.md", ROOT / "deploy/README.md"]


def shown() -> list[str]:
    """The command lines of the pages that start a watcher."""
    blocks = [
        text for page in PAGES for text in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if MODULE in line]


def options(words: list[str]) -> list[str]:
    python, *rest = words[words.index("-m") - 1 :]
    assert Path(python).name == "python"
    assert rest[:2] == ["-m", MODULE]
    return rest[2:]


@pytest.mark.parametrize("name", deployed.commands())
def test_a_command_of_deploy_is_one_that_the_watcher_takes(name: str) -> None:
    args = parser().parse_args(options(deployed.commands()[name]))
    assert args.address.endswith(":6379")
    assert sources_of(args).cloud == "aws"


@pytest.mark.parametrize("line", shown())
def test_a_command_of_the_pages_is_one_that_the_watcher_takes(line: str) -> None:
    parser().parse_args(options(shlex.split(line)))


def test_the_pages_show_how_it_is_started() -> None:
    assert len(shown()) >= 2


def test_the_sidecar_sees_the_raylets_files_and_is_given_what_ray_wants() -> None:
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
    env = {one["name"]: one for one in sidecar["env"]}
    assert env["RAY_AUTH_MODE"]["value"] == deployed.ray_cluster()["spec"]["authOptions"]["mode"]
    secret = deployed.ray_cluster()["spec"]["authOptions"]["secretName"]
    assert env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": secret, "key": "auth_token"}
    args = parser().parse_args(options(sidecar["command"]))
    assert args.address == f"{name}-head-svc:6379"
    assert args.node_id == ""


def test_what_a_pod_is_given_before_it_is_killed_fits() -> None:
    (pod,) = deployed.spot_pods()
    args = parser().parse_args(options(deployed.sidecar()["command"]))
    drain = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    seconds = float(drain["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    assert args.grace <= seconds < pod["terminationGracePeriodSeconds"]
    assert not args.release, "other pods may be on the machine"


def test_all_nodes_say_their_market_and_their_price() -> None:
    spec = deployed.ray_cluster()["spec"]
    labels: list[dict[str, Any]] = [group["labels"] for group in spec["workerGroupSpecs"]]
    assert [one["ray.io/market-type"] for one in labels] == ["on-demand", "spot"]
    assert all(float(one["usd-per-hour"]) > 0 and one["instance-type"] for one in labels)
    assert all(isinstance(value, str) for one in labels for value in one.values())


def test_the_unit_starts_again_what_ends_with_its_raylet() -> None:
    found = deployed.unit()
    assert found["Service"]["Restart"] == "always"
    assert found["Service"]["User"]
    assert found["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--address"),
        (["--address", "head:6379", "--cloud", "oracle"], "oracle"),
        (["--address", "head:6379", "--grace", "soon"], "'soon' is no number of seconds above 0"),
        (["--address", "head:6379", "--grace", "nan"], "'nan' is no number of seconds above 0"),
        (["--address", "head:6379", "--gcp-lead", "-1"], "'-1' is no number of seconds above 0"),
        (["--address", "head:6379", "--metadata-url", "169.254.169.254"], "http://"),
    ],
)
def test_wrong_usage_is_refused_and_says_what_of(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
