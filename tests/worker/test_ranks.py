"""Test attempts of several processes, with a real fork server and PyTorch's gloo on two processors."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest
import torch

from tests import frameworks
from tests.worker.driving import SECOND, Driver, parsed
from tuner.checkpoints.checkpoints import CheckpointId, CheckpointStore
from tuner.domain.job import program_config
from tuner.driver.messages import end_of
from tuner.training import SpotSafe
from tuner.training.checkpoint import read_parts
from tuner.training.ranks import Ranks
from tuner.worker import actor, endings
from tuner.worker.actor import OtherActors
from tuner.worker.child import NotTrainable, load
from tuner.worker.process_tree import descendants
from tuner.worker.ranks import OtherNodes, RankGroup, free_port
from tuner.worker.restoring import size_of
from tuner.worker.supervisor import Supervisor

CASES = "tests.worker.rank_cases"
TWO: dict[str, Any] = {"processes": 2, "resources": {"CPU": 2}}


class SecondNode(OtherNodes):
    """The second node of the attempts of a supervisor, in this process. `tuner.worker.actor` has one in an actor."""

    def __init__(self, first: Supervisor) -> None:
        self.first, self.supervisor = first, Supervisor(f"{CASES}:trains")
        self.attempt: tuple[str, int] | None = None
        self._answered_s = 0.0
        self.order = {"nodes": 2, "resources": {"CPU": 1}, "port": free_port()}
        self.is_silent = False

    def begin(self, order: dict[str, Any]) -> None:
        self.attempt = order["trial"], order["attempt"]
        self.supervisor.order({**order, "node": 1})
        threading.Thread(target=self._follow, args=self.attempt).start()

    def _follow(self, trial: str, number: int) -> None:
        while self.attempt is not None:
            called_s, result = time.monotonic(), self.supervisor.step()
            if result["state"] != "running":
                self.attempt = None
            if not self.is_silent:
                self._answered_s = called_s
                self.first.receive_from_other_node(trial, number, result)

    def lose(self) -> None:
        assert self.attempt is not None
        error = endings.node_lost(1, "it is gone")
        self.first.receive_from_other_node(
            *self.attempt, {"state": "failed", "error": error, "rank_ends": []}
        )

    def renew(self, lease_ns: int) -> None:
        self.supervisor.receive_from_first_node({"order": "renew", "lease_ns": lease_ns})

    def end(self, state: str, error: dict[str, str] | None) -> None:
        self.supervisor.receive_from_first_node({"order": "end", "state": state, "error": error})

    def have_answered(self, since_s: float) -> bool:
        return self.attempt is None or self._answered_s >= since_s

    def settles(self) -> bool:
        return until(lambda: self.attempt is None)

    @property
    def ranks(self) -> list[int]:
        return list(self.supervisor.processes.pids)


@pytest.fixture(scope="module")
def second_node(supervisor_of: Callable[[str], Supervisor]) -> Iterator[SecondNode]:
    node = SecondNode(supervisor_of(CASES))
    yield node
    node.supervisor.close()


@pytest.fixture
def on_two_nodes(second_node: SecondNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecondNode]:
    """Give the supervisor that the tests share a second node. Its ranks are gone after the test."""
    for user in (second_node.first, second_node.first._rank_ends):
        monkeypatch.setattr(user, "_others", second_node)
    second_node.is_silent = False
    yield second_node
    assert second_node.settles()
    assert not second_node.ranks


def until(is_so: Callable[[], bool]) -> bool:
    """Wait until the condition holds. Return False after a minute."""
    deadline = time.monotonic() + 60
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def ranks_of(driver: Any) -> list[int]:
    return list(driver.supervisor.processes.pids)


def is_living(pid: int) -> bool:
    """Return whether a process runs. A zombie, whose parent has yet to collect its exit status, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def losses(driver: Any) -> list[float]:
    return [report["metrics"]["loss"] for report in driver.reports]


def test_ranks_are_numbered_as_by_torchrun() -> None:
    order = {
        "trial": "trial_1",
        "processes": 2,
        "nodes": 2,
        "node": 1,
        "address": "10.0.0.1",
        "port": 5,
        "resources": {"CPU": 8},
    }
    group = RankGroup.of(order)
    assert list(group.ranks) == [2, 3]
    assert group.variables(3) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "5",
        "OMP_NUM_THREADS": "4",
        "TORCHELASTIC_RUN_ID": "trial_1",
    }
    assert RankGroup.of({"trial": "trial_1"}).variables(0) == {}


def test_interrupted_ddp_training_equals_an_uninterrupted_one(drive: Any) -> None:
    whole, parts = drive("trains", CASES), drive("trains", CASES)
    config = {"differ": True}
    whole.run_to(5, config=config, **TWO)
    assert whole.reports[0]["metrics"]["ranks"] == 2
    assert whole.reports[0]["metrics"]["threads"] == 1
    whole.end("stop")
    refused = {**config, "refused": True}  # all ranks get the exception, so that all can report again
    parts.save_at(2, config=refused, **TWO)
    parts.run_to(5, restore=2, config=refused, **TWO)
    assert losses(parts) == losses(whole)
    parts.end("stop")


def test_fsdp_checkpoint_is_restored_on_another_number_of_ranks(drive: Any, tmp_path: Path) -> None:
    config = {"fsdp": True}
    whole, parts = drive("trains", CASES), drive("trains", CASES)
    whole.run_to(6, config=config, **TWO)
    whole.end("stop")
    parts.save_at(2, config=config, **TWO)
    store = CheckpointStore(str(tmp_path / "storage"), "default", "job_1")
    exported = read_parts(store.fetch("trial_00000", CheckpointId(2, 1), tmp_path / "checkpoint"))
    torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 1)).load_state_dict(
        exported["model"]
    )
    parts.save_at(4, restore=2, config=config, processes=1, resources={"CPU": 1})
    parts.run_to(6, restore=4, config=config, **TWO)
    parts.end("stop")
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-6)
    assert [report["metrics"]["ranks"] for report in parts.reports] == [2, 2, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("rank", "how", "kind", "text"),
    [
        (0, "killed", "killed", "killed by SIGKILL"),
        (1, "killed", "killed", "rank 1: user code's process was killed by SIGKILL"),
        (1, "raises", "raised", "rank 1: bad luck"),
        (1, "exits", "exited", "rank 1: user code ended its process with exit status 0"),
    ],
)
def test_death_of_one_rank_fails_the_attempt_with_its_cause(
    drive: Any, rank: int, how: str, kind: str, text: str
) -> None:
    driver = drive("trains", CASES)
    driver.begin(target_step=9, config={"dies": rank, "how": how}, **TWO)
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == kind
    assert text in failed["error"]["message"]
    assert [report["step"] for report in driver.reports] == [1, 2]
    assert not any(map(is_living, descendants(driver.supervisor.server.pid)))


def test_end_of_the_lease_kills_all_ranks(drive: Any) -> None:
    driver = drive("trains", CASES)
    driver.begin(target_step=9, config={"step_s": 600}, **TWO)
    driver.until(lambda _: len(ranks_of(driver)) == 2)
    pids = ranks_of(driver)
    lease_ns = driver.lease_ends_in(0.5)
    paused = driver.until_state("paused")
    assert paused["error"]["kind"] == "lease"
    assert sum(paused["meter"].values()) <= lease_ns
    assert not any(map(is_living, pids))


def test_fsdp_training_on_two_nodes_stores_the_files_of_both(
    drive: Any, on_two_nodes: SecondNode, tmp_path: Path
) -> None:
    config = {"fsdp": True}
    whole, parts = drive("trains", CASES), drive("trains", CASES)
    whole.run_to(4, config=config, **TWO)
    whole.end("stop")
    parts.save_at(2, config=config, **on_two_nodes.order)
    assert on_two_nodes.settles()
    store = CheckpointStore(str(tmp_path / "storage"), "default", "job_1")
    size = size_of(store.fetch("trial_00000", CheckpointId(2, 1), tmp_path / "checkpoint"))
    waiting = parts.run_to(4, restore=2, config=config, **on_two_nodes.order)
    assert waiting["usage"]["restored_bytes"] == 2 * size, "each node downloads the checkpoint"
    parts.end("stop")
    assert losses(parts) == losses(whole)
    assert {report["metrics"]["ranks"] for report in parts.reports} == {2}


@pytest.mark.parametrize(
    ("rank", "how", "kind", "text"),
    [
        (0, "killed", "killed", "user code's process was killed by SIGKILL"),
        (1, "killed", "killed", "rank 1: user code's process was killed by SIGKILL"),
        (1, "exits", "exited", "rank 1: user code ended its process with exit status 0"),
    ],
)
def test_death_of_a_rank_on_one_of_two_nodes_fails_the_attempt_with_its_cause(
    drive: Any, on_two_nodes: SecondNode, rank: int, how: str, kind: str, text: str
) -> None:
    driver = drive("trains", CASES)
    driver.begin(target_step=9, config={"dies": rank, "how": how}, **on_two_nodes.order)
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == kind
    assert text in failed["error"]["message"]
    assert not any(map(is_living, descendants(driver.supervisor.server.pid)))


def test_attempt_is_lost_with_one_of_its_nodes(drive: Any, on_two_nodes: SecondNode) -> None:
    driver = drive("trains", CASES)
    driver.run_to(1, config={}, **on_two_nodes.order)
    driver.order("continue", target_step=9, lease_ns=0)
    on_two_nodes.is_silent = True  # Its ranks die first. That the node is gone is noticed later.
    for pid in on_two_nodes.ranks:
        os.kill(pid, signal.SIGKILL)
    driver.until(lambda _: driver.supervisor.attempt.rank_ends)
    on_two_nodes.lose()
    lost = driver.until_state("failed")
    assert end_of(parsed(lost)) == "lost"
    assert "node 1 of the trial was lost" in lost["error"]["message"]


def test_end_of_the_lease_kills_the_ranks_on_all_nodes(drive: Any, on_two_nodes: SecondNode) -> None:
    """The second node ends them by itself, also if the first one hangs. The lease of the first node is too long to end in this test."""
    driver = drive("trains", CASES)
    driver.begin(target_step=9, config={"step_s": 600}, **on_two_nodes.order)
    driver.until(lambda _: len(ranks_of(driver) + on_two_nodes.ranks) == 2)
    pids = on_two_nodes.ranks
    attempt, other = driver.supervisor.attempt, on_two_nodes.supervisor.attempt
    assert other is not None
    assert other.lease_ns == attempt.lease_ns
    assert other.left_ns() >= attempt.left_ns()  # the first is read first
    with on_two_nodes.supervisor._changed:
        other.lease_ns = other.watch.total_ns() + SECOND // 2
    paused = driver.until_state("paused")
    assert paused["error"]["kind"] == "lease"
    assert not any(map(is_living, pids))


def test_end_on_the_first_node_kills_user_code_that_the_second_one_imports(tmp_path: Path) -> None:
    second = Supervisor("tests.worker.hangs_imported:train")
    driver = Driver(tmp_path, second.processes._servers._entry, second)
    try:
        driver.begin(nodes=2, node=1, checkpoint=None, used_ns=0, port=1)
        second.receive_from_first_node({"order": "end", "state": "paused", "error": endings.lease_ended()})
        assert until(lambda: not second.server.alive)
    finally:
        second.close()


def test_server_that_is_started_after_the_end_of_its_attempt_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Supervisor("tests.worker.hangs_imported:train")
    driver, living = (
        Driver(tmp_path, second.processes._servers._entry, second),
        second.processes._servers.living,
    )

    def ended_before() -> Any:
        second.receive_from_first_node({"order": "end", "state": "paused", "error": endings.lease_ended()})
        assert until(lambda: not second.server.alive)
        return living()

    monkeypatch.setattr(second.processes._servers, "living", ended_before)
    first_server = second.server
    try:
        driver.begin(nodes=2, node=1, checkpoint=None, used_ns=0, port=1)
        assert until(lambda: second.server is not first_server and not second.server.alive)
    finally:
        second.close()


@pytest.fixture
def lost_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[OtherActors, threading.Event]]:
    """Return another node, and an event that lets its calls fail. A node without Ray."""
    fails = threading.Event()

    def get(call: object, timeout: float) -> None:
        fails.wait()
        raise RuntimeError("it is gone")

    monkeypatch.setattr(actor.ray, "get", get)
    monkeypatch.setattr(actor.ray, "kill", lambda _: None)
    monkeypatch.setattr(actor, "ENDS_WITHIN_S", 0.0)
    before = {*threading.enumerate()}
    yield OtherActors([MagicMock()]), fails
    # A thread that follows the node would later call the real `ray.kill`, which starts a Ray cluster.
    fails.set()
    for thread in {*threading.enumerate()} - before:
        thread.join()


@pytest.mark.parametrize("is_gone", [True, False])
def test_attempt_fails_on_a_node_that_is_lost_or_does_not_end_it(
    lost_nodes: tuple[OtherActors, threading.Event], is_gone: bool
) -> None:
    (others, fails), received = lost_nodes, list[tuple[str, int, Any]]()
    others.follow(lambda *news: received.append(news))
    if is_gone:
        fails.set()
        assert until(lambda: others.is_one_lost)
    others.begin({"trial": "trial_1", "attempt": 3})
    if not is_gone:
        others.settle()
    assert until(lambda: bool(received))
    fails.set()
    ((*attempt, news),) = received
    assert (attempt, news["state"]) == (["trial_1", 3], "failed")
    assert ("it is gone" if is_gone else "the node did not end its attempt") in news["error"]["message"]


def test_file_that_cannot_be_read_is_sent_as_an_error(tmp_path: Path) -> None:
    """Rank 0 waits for all of its bytes."""
    ranks, sent = Ranks.__new__(Ranks), list[int]()
    ranks._distributed = SimpleNamespace(send=lambda tensor, *_, **__: sent.append(len(tensor)))
    ranks._saves = None
    (tmp_path / "short").write_bytes(b"123")
    errors = [ranks._send(tmp_path / name, 5) for name in ("short", "missing")]
    assert sent == [5, 5]
    assert "became shorter" in (errors[0] or "")
    assert "FileNotFoundError" in (errors[1] or "")


def test_stopped_attempt_leaves_no_rank(drive: Any) -> None:
    driver = drive("trains", CASES)
    driver.run_to(1, config={}, **TWO)
    pids = ranks_of(driver)
    assert len(pids) == 2
    driver.end("stop")
    assert not any(map(is_living, pids))


def test_reports_of_ranks_other_than_the_first_are_ignored(drive: Any) -> None:
    driver = drive("all_report", CASES)
    driver.begin(target_step=9, **TWO)
    driver.until_state("ended")
    assert [(report["step"], report["metrics"]["acc"]) for report in driver.reports] == [
        (1, 0),
        (2, 0),
        (3, 0),
    ]


def test_spot_safe_in_a_command_on_several_nodes_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tuner.training.spot_safe.rank_count", lambda: 2)
    monkeypatch.setenv("TUNER_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="needs nodes: 1"), SpotSafe():
        pass


def test_ranks_that_have_not_joined_fail_with_the_remedy(drive: Any) -> None:
    driver = drive("never_joins", CASES)
    driver.begin(**TWO)
    failed = driver.until_state("failed")
    assert "torch.distributed.init_process_group()" in failed["error"]["message"]
    assert "processes_per_node: 1" in failed["error"]["message"]


def test_attempt_is_begun_again_if_its_port_is_taken(drive: Any) -> None:
    driver = drive("port_is_taken", CASES)
    driver.begin(**TWO)
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == "port"
    assert end_of(parsed(failed)) == "lost"


@pytest.mark.parametrize("fsdp", [False, True])
def test_ranks_exchange_gradients_once_for_each_accumulated_step(drive: Any, fsdp: bool) -> None:
    shown = []
    for passes_model in (False, True):
        driver = drive("accumulates", CASES)
        driver.run_to(1, config={"fsdp": fsdp, "passes_model": passes_model}, seed=3, **TWO)
        driver.end("stop")
        shown.append(driver.reports[0]["metrics"])
    often, once = shown
    assert (often["exchanges"], once["exchanges"]) == (4, 1)
    assert once["weight"] == pytest.approx(often["weight"])


def test_example_of_the_guide_continues_where_it_was_paused(drive: Any) -> None:
    driver = drive("trains", CASES)
    driver.entry = "tests.frameworks.with_ddp:train"
    config = {"learning_rate": 0.1}
    driver.save_at(1, config=config, **TWO)
    driver.run_to(2, restore=1, config=config, **TWO)
    driver.end("stop")
    first, second = losses(driver)
    assert second < first


def script(name: str) -> dict[str, Any]:
    file = Path(str(frameworks.__file__)).parent / name
    return program_config(f"{sys.executable} {file} --lr {{lr}} --epochs {{steps}}", None, 9, {"lr": 0.05})


@pytest.mark.extended
@pytest.mark.parametrize("name", ["with_torchrun.py", "with_accelerate.py"])
def test_script_of_several_ranks_runs_unchanged_and_continues_exactly(drive: Any, name: str) -> None:
    order = {"config": script(name), **TWO}
    whole = drive("run", "tuner.worker.program")
    whole.run_to(8, **order)
    whole.end("stop")
    parts = drive("run", "tuner.worker.program", storage=f"{whole.storage}-parts")
    saved = parts.save_from(2, **order)
    parts.run_to(8, restore=saved, **order)
    parts.end("stop")
    assert [report["step"] for report in parts.reports] == [*range(1, 9)]
    assert losses(parts) == losses(whole)
    assert losses(whole)[7] < losses(whole)[0]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("case", "strategy", "nodes"),
    [
        ("lightning_on_two", "ddp", 1),
        ("lightning_on_two", "fsdp2", 1),
        ("lightning_on_two", "fsdp2 in shards", 1),
        ("lightning_on_two", "fsdp2 in shards", 2),
        ("transformers_on_two", "", 1),
        ("accelerate_on_two", "", 1),
    ],
)
def test_training_of_a_framework_on_two_ranks_continues_exactly(
    drive: Any, on_two_nodes: SecondNode, case: str, strategy: str, nodes: int
) -> None:
    whole, parts = drive("trains", CASES), drive("trains", CASES)
    whole.entry = parts.entry = f"tests.worker.rank_frameworks:{case}"
    order = {"config": {"strategy": strategy}, **(TWO if nodes == 1 else on_two_nodes.order)}
    whole.run_to(4, **order)
    whole.end("stop")
    assert on_two_nodes.settles()
    parts.save_at(2, **order)
    assert on_two_nodes.settles()
    parts.run_to(4, restore=2, **order)
    parts.end("stop")
    assert losses(parts) == losses(whole)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("case", "config"),
    [
        ("lightning_on_two", {"epochs": 2}),
        ("transformers_on_two", {"epochs": 2, "every": 3}),  # ends two optimizer steps after the last report
    ],
)
def test_training_on_two_ranks_that_ends_by_itself_saves_its_last_step(
    drive: Any, case: str, config: dict[str, Any]
) -> None:
    driver = drive("trains", CASES)
    driver.entry = f"tests.worker.rank_frameworks:{case}"
    driver.begin(target_step=9, config=config, **TWO)
    assert driver.until_state("ended")["saved_step"] == 2


def test_trainer_of_ray_train_is_refused_with_the_lines_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = type("TorchTrainer", (), {"__module__": "ray.train.torch.torch_trainer"})()
    monkeypatch.setattr("tests.frameworks.with_ddp.trainer", trainer, raising=False)
    with pytest.raises(NotTrainable, match=r"train_loop_per_worker.*processes_per_node: N"):
        load("tests.frameworks.with_ddp:trainer")


def test_worker_whose_processes_cannot_be_killed_begins_no_further_attempt() -> None:
    worker = actor.Worker.__new__(actor.Worker)
    worker._node, worker._slots, worker._others, worker._messages = "node", None, OtherActors([]), 0
    worker._board = MagicMock(**{"described.return_value": {}, "earliest_notice.return_value": None})
    worker._supervisor = supervisor = MagicMock(is_clean=True)
    supervisor.step.return_value = {"trial": "trial_00000", "state": "ended"}
    assert worker.train([])[actor.MESSAGES][0]["retires"] is False
    supervisor.is_clean = False
    assert worker.train([])[actor.MESSAGES][0]["retires"] is True
    supervisor.attempt = None
    with pytest.raises(RuntimeError, match="processes of an attempt could not be killed"):
        worker.train([])
