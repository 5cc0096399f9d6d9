"""Test finding the machine that an attempt runs on, from Ray and from the machine's cloud."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.cluster import nodes as its
from tuner.domain.cost import Meter
from tuner.domain.offer import MARKET_LABEL
from tuner.driver import ray_machines
from tuner.driver.messages import WorkerMessage

NODE = {"NodeID": "n1", "Labels": {MARKET_LABEL: "spot"}, "Resources": {"CPU": 4.0, "GPU": 1.0}}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    nodes: list[Any] = [NODE]
    monkeypatch.setattr(ray_machines.ray, "nodes", lambda: nodes)
    return nodes


def word(attempt: int, **facts: str) -> WorkerMessage:
    return WorkerMessage("t", attempt, "running", Meter(), node="n1", machine=facts)


@pytest.mark.usefixtures("seen")
def test_machine_is_reported_on_assignment_and_when_cloud_facts_change() -> None:
    machines = ray_machines.AssignedMachines()
    machine = machines.machine_of("t", 1, ["n1"])
    assert machine is not None
    assert (its.market_of(machine.labels), machine.cpus, machine.gpus) == ("spot", 4.0, 1.0)
    assert machines.note_message(word(1)) is None
    more = machines.note_message(word(1, market="on_demand", instance_type="g6.xlarge"))
    assert more is not None
    assert (its.market_of(more.labels), its.instance_type_of(more.labels)) == ("on_demand", "g6.xlarge")
    assert machines.note_message(word(1, market="on_demand", instance_type="g6.xlarge")) is None
    known = machines.machine_of("t", 2, ["n1"])
    assert known is not None
    assert its.instance_type_of(known.labels) == "g6.xlarge", "the next attempt there knows at once"


def test_node_unknown_at_assignment_is_looked_up_at_first_message(seen: list[Any]) -> None:
    machines = ray_machines.AssignedMachines()
    seen.clear()
    assert machines.machine_of("t", 1, ["n1"]) is None
    seen.append(NODE)
    assert machines.note_message(word(1)) is not None
    assert machines.note_message(word(1)) is None


def test_machines_of_all_nodes_are_reported_and_completed_with_the_facts_of_each(seen: list[Any]) -> None:
    machines = ray_machines.AssignedMachines()
    nodes = ["n1", "n2", "n3"]
    assert machines.machine_of("t", 1, nodes) is None
    seen.extend({"NodeID": name, "Labels": {}, "Resources": {"CPU": 8.0}} for name in nodes[1:])
    machine = machines.machine_of("t", 1, nodes)
    assert machine is not None
    assert [node.cpus for node in (machine, *machine.others)] == [4, 8, 8]
    assert machines.note_message(word(1)) is None, "the worker does not know its other nodes yet"
    message, types = word(1, instance_type="c7i"), list[list[str]]()
    for others in [(), (("n3", {"instance_type": "m6"}),), (("n2", {}), ("n3", {"instance_type": "m6"}))]:
        machine = machines.note_message(replace(message, others=others))
        if machine is not None:
            types.append([its.instance_type_of(node.labels) for node in (machine, *machine.others)])
    assert types == [["c7i", "local", "local"], ["c7i", "local", "m6"]]


def test_node_of_the_actor_is_known_if_the_placement_group_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SimpleNamespace(actor_table=lambda _: {"Address": {"NodeID": "n1"}})
    monkeypatch.setattr(ray_machines, "cluster_state", table)
    actor = SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda: "aa"))
    assert ray_machines.nodes_of(None, actor, several=True) == ["n1"]


def test_nodes_unknown_at_assignment_are_added_as_they_answer(seen: list[Any]) -> None:
    seen.append({**NODE, "NodeID": "n2"})
    machines = ray_machines.AssignedMachines()
    for others, count in [((), 0), ((("n2", {}),), 1)]:
        machine = machines.note_message(replace(word(1), others=others))
        assert machine is not None
        assert len(machine.others) == count
