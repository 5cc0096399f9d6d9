"""Evaluate the network policies as the API describes them, for every pair of pods and every port."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.manifests import Manifest, built, built_with_backup, templates, the

HERE = "tuner"
# A pod with our labels in another user's namespace.
PRETENDER = "pretender"
ELSEWHERE = {"stranger": {}, PRETENDER: {"app.kubernetes.io/name": "tuner", "ray.io/cluster": "tuner"}}
NEIGHBOUR = "neighbour"
INTERNET = "internet"
# Default ports of Ray's head: GCS, dashboard and jobs, client, agent, metrics; and one port of a worker process.
METRICS = 8080
RAY = (6379, 8265, 10001, 52365, METRICS, 20000)
PORTS = (8000, 5432, 9000, *RAY)

Pods = dict[str, dict[str, str]]


def ours(among: list[Manifest]) -> Pods:
    return {name: template["metadata"]["labels"] for name, template in templates(among)} | {NEIGHBOUR: {}}


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}, "the rest of selectors is not worked out here"
    return selector.get("matchLabels", {}).items() <= labels.items()


def is_peer(peer: dict[str, Any], source: str, pods: Pods) -> bool:
    if source == INTERNET:
        return "ipBlock" in peer
    if "namespaceSelector" in peer:
        assert peer["namespaceSelector"] == {}, "every namespace"
        return matches(peer.get("podSelector", {}), {**pods, **ELSEWHERE}[source])
    return source in pods and matches(peer["podSelector"], pods[source])


def lets_in(rule: dict[str, Any], source: str, port: int, pods: Pods) -> bool:
    """Return whether the rule admits the source. A rule without `from` admits every source, one without `ports` every port."""
    if "ports" in rule and not any(allowed_port["port"] == port for allowed_port in rule["ports"]):
        return False
    return "from" not in rule or any(is_peer(peer, source, pods) for peer in rule["from"])


def reached(among: list[Manifest]) -> Iterator[tuple[str, str, int]]:
    """Yield each source, target and port between which a connection is allowed."""
    pods = ours(among)
    policies = [manifest["spec"] for manifest in among if manifest["kind"] == "NetworkPolicy"]
    for target, labels in pods.items():
        selecting = [policy for policy in policies if matches(policy["podSelector"], labels)]
        rules = [rule for policy in selecting for rule in policy.get("ingress", [])]
        for source in (*pods, *ELSEWHERE, INTERNET):
            for port in PORTS:
                if not selecting or any(lets_in(rule, source, port, pods) for rule in rules):
                    yield source, target, port


NODES = ("head", "on-demand", "spot")


@pytest.mark.parametrize("overlay", ["trial", "aws", "gcp"])
def test_only_ray_nodes_reach_ray_and_only_the_service_its_dashboard(overlay: str) -> None:
    connections = [
        (source, port) for source, target, port in reached(built(f"overlays/{overlay}")) if target in NODES
    ]
    connections = [(source, port) for source, port in connections if source in NODES or port != METRICS]
    assert {source for source, _ in connections} == {*NODES, "tuner"}
    assert {port for source, port in connections if source == "tuner"} == {8265}
    assert {port for source, port in connections if source in NODES} == set(PORTS)


def test_only_the_pods_that_need_them_reach_database_and_storage() -> None:
    connections = set(reached(built_with_backup("trial")))
    assert {connection for connection in connections if connection[1] == "database"} == {
        (source, "database", 5432)
        for source in ("tuner", "tuner-migrate", "tuner-backup", "tuner-restore", "head")
    }
    assert {connection for connection in connections if connection[1] == "storage"} == {
        (source, "storage", 9000) for source in ("tuner", "bucket", "tuner-restore", *NODES)
    }


@pytest.mark.parametrize("overlay", ["trial", "aws", "gcp"])
def test_other_namespaces_reach_only_page_and_metrics_and_the_internet_nothing(overlay: str) -> None:
    connections = set(reached(built(f"overlays/{overlay}")))
    for source in (*ELSEWHERE, NEIGHBOUR):
        assert {connection[1:] for connection in connections if connection[0] == source} == {
            ("tuner", 8000),
            *((node, METRICS) for node in NODES),
        }, source
    assert not [connection for connection in connections if connection[0] == INTERNET]


@pytest.mark.parametrize("overlay", ["trial", "aws", "gcp"])
def test_no_pod_bypasses_the_network_policies(overlay: str) -> None:
    """No pod is reachable by a port of its machine, the machine's network, or a load balancer."""
    among = built(f"overlays/{overlay}")
    for name, template in templates(among):
        assert "hostNetwork" not in template["spec"], name
        for container in template["spec"]["containers"]:
            assert all("hostPort" not in port for port in container.get("ports", [])), name
    assert all(
        manifest["spec"].get("type", "ClusterIP") == "ClusterIP"
        for manifest in among
        if manifest["kind"] == "Service"
    )
    head = the("RayCluster", "tuner", among)["spec"]["headGroupSpec"]
    assert head.get("serviceType", "ClusterIP") == "ClusterIP"
    assert not head.get("enableIngress")


def test_every_pod_is_reachable_without_the_policies() -> None:
    """This shows that the tests above would fail without the policies."""
    among = [manifest for manifest in built("overlays/trial") if manifest["kind"] != "NetworkPolicy"]
    connections = set(reached(among))
    assert (INTERNET, "head", 6379) in connections
    assert (PRETENDER, "database", 5432) in connections
