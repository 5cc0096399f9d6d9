"""Test that querying the machines returns immediately, however long Ray takes to answer."""

import threading
from collections.abc import Iterator

import pytest

from tests.cluster.waiting import until
from tuner.cluster.node_types import NodeTypes
from tuner.domain.offer import WorkerMachine
from tuner.driver import ray_machines

ONE, TWO = WorkerMachine({}, 1, 0), WorkerMachine({}, 2, 0)


class Head:
    """A fake Ray head. It answers once, then hangs until it is released, then fails, and then answers again."""

    def __init__(self) -> None:
        self.calls: list[threading.Thread] = []
        self.goes_on = threading.Event()

    def look(self, types: NodeTypes) -> list[WorkerMachine]:
        self.calls.append(threading.current_thread())
        if len(self.calls) == 1:
            return [ONE]
        self.goes_on.wait()
        if len(self.calls) == 2:
            raise RuntimeError("the head is away")
        return [ONE, TWO]


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    fake_head = Head()
    monkeypatch.setattr(ray_machines, "FRESH_S", 0.01)
    monkeypatch.setattr(ray_machines, "_list_machines", fake_head.look)
    yield fake_head
    fake_head.goes_on.set()


def test_unresponsive_head_does_not_block_callers(head: Head) -> None:
    known = ray_machines.ClusterMachines(NodeTypes())
    assert known() == [ONE]
    until(lambda: len(head.calls) == 2)
    assert known() == [ONE]
    assert threading.current_thread() not in head.calls[1:]
    head.goes_on.set()
    until(lambda: known() == [ONE, TWO])
    known.close()
    assert not known._watcher.is_alive()
