"""Test which nodes an autoscaler may start, read from its own files, and which of them are still to come."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.cluster.node_types import NodeType, NodeTypes, node_types_of, read_node_types
from tuner.cluster.nodes import Node
from tuner.domain.errors import BadFile

LAUNCHER = """
cluster_name: c
max_workers: 5
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, node_config: {}}
  demand: {max_workers: 2, resources: {CPU: 4}, labels: {ray.io/market-type: on-demand, instance-type: m7i.xlarge}}
  spot:
    resources: {CPU: 4, GPU: 1, memory: 1024}
    labels: {ray.io/market-type: spot, instance-type: g6.xlarge, usd-per-hour: "0.31"}
"""
KUBERAY = """
apiVersion: v1
kind: ConfigMap
---
apiVersion: ray.io/v1
kind: RayCluster
spec:
  enableInTreeAutoscaling: true
  workerGroupSpecs:
    - groupName: spot
      minReplicas: 0
      maxReplicas: 3
      numOfHosts: 2
      rayStartParams: {num-gpus: "1"}
      labels: {ray.io/market-type: spot}
      template:
        spec:
          containers:
            - resources: {requests: {cpu: 500m}, limits: {cpu: 2500m, memory: 2Gi, nvidia.com/gpu: 4}}
            - resources: {limits: {cpu: "9"}}
    - groupName: off
      maxReplicas: 0
      template: {spec: {containers: [{resources: {limits: {cpu: 1}}}]}}
"""
SPOT = NodeType(
    "spot",
    4,
    1,
    1024,
    5,
    {"ray.io/market-type": "spot", "instance-type": "g6.xlarge", "usd-per-hour": "0.31"},
)


def test_ray_launcher_file_is_read() -> None:
    node_types = read_node_types(LAUNCHER, "f")
    demand, spot = node_types.types
    assert (demand.name, demand.cpus, demand.at_most) == ("demand", 4, 2)
    assert spot == SPOT
    assert node_types.at_most == 5


def test_kuberay_worker_groups_are_read_like_its_autoscaler_does() -> None:
    node_types = read_node_types(KUBERAY, "f")
    assert node_types == NodeTypes((NodeType("spot", 3, 1, 2 << 30, 6, {"ray.io/market-type": "spot"}),), 6)
    still = KUBERAY.replace("enableInTreeAutoscaling: true", "enableInTreeAutoscaling: false")
    assert read_node_types(still, "f") == NodeTypes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not YAML"),
        ("a: 1", "neither available_node_types"),
        (LAUNCHER.replace("max_workers: 2", "max_workers: -2"), "available_node_types.demand.max_workers"),
        (LAUNCHER.replace("{CPU: 4},", "{},"), "available_node_types.demand.resources.CPU is missing"),
        (LAUNCHER.replace("CPU: 4, GPU: 1", "CPU: four"), "spot.resources.CPU must be an amount"),
        (LAUNCHER.replace('"0.31"', "0.31"), 'usd-per-hour must be text: write "0.31"'),
        (LAUNCHER.replace('"0.31"', '"cheap"'), "usd-per-hour must be a price in dollars per hour"),
        (KUBERAY.replace("maxReplicas: 3", "maxReplicas: many"), r"workerGroupSpecs\[0\].maxReplicas"),
        (KUBERAY.replace("containers:", "pods:", 1), r"workerGroupSpecs\[0\].template.spec.containers"),
        (KUBERAY.replace("cpu: ", "chip: "), r"workerGroupSpecs\[0\].*limits.cpu is missing"),
    ],
)
def test_invalid_file_is_refused_with_field_and_correction(text: str, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        read_node_types(text, "f")


def test_changed_file_is_reread_and_missing_file_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(LAUNCHER)
    assert len(node_types_of(str(file)).types) == 2
    file.write_text(LAUNCHER.replace("max_workers: 2", "max_workers: 0 "))
    assert [node_type.name for node_type in node_types_of(str(file)).types] == ["spot"]
    file.unlink()
    with pytest.raises(BadFile, match="TUNER_NODE_TYPES"):
        node_types_of(str(file))


def test_driver_parses_the_node_types_that_the_service_sends() -> None:
    for text in (LAUNCHER, KUBERAY):
        node_types = read_node_types(text, "f")
        assert node_types_of(node_types.text()) == node_types


TYPES = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(
    lambda counts: tuple(NodeType(f"t{i}", i + 1, 0, 0, n, {"kind": f"t{i}"}) for i, n in enumerate(counts))
)


@given(TYPES, st.integers(0, 12), st.lists(st.integers(0, 3), max_size=8), st.booleans())
def test_nodes_to_come_respect_the_autoscaler_limits(
    types: tuple[NodeType, ...], at_most: int, alive: list[int], grouped: bool
) -> None:
    """The limit holds for each type including its existing nodes, and for all types together as long as the
    existing nodes respect it.
    """
    node_types = NodeTypes(types, at_most)
    label = "ray.io/node-group" if grouped else "kind"
    nodes = [Node(f"n{n}", kind + 1, 0, 0, {label: f"t{kind}"}) for n, kind in enumerate(alive)]
    coming = node_types.nodes_to_come([Node("head", 0, 0, 0, is_head=True), *nodes])
    assert all(not coming_node.alive and coming_node.id == "" for coming_node in coming)
    for number, node_type in enumerate(types):
        there, more = alive.count(number), sum(node.name == node_type.name for node in coming)
        assert more <= max(0, node_type.at_most - there)
        assert more == min(max(0, node_type.at_most - there), max(0, at_most - len(alive)))
