"""Test notices posted for a node's workers: complete or absent, for this node only, and gone when withdrawn."""

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.cluster.notices.feeds import wall_clock
from tuner.cluster.notices.node_board import NodeBoard
from tuner.cluster.notices.notice import Notice
from tuner.domain.time import NS, Instant

LATER = Instant(1_800_000_000 * NS)
GOES = Notice("aws", "terminate", "aws/instance-action", LATER, "goes")
SOONER = Notice("operator", "terminate", "operator/1", Instant(LATER - NS), "goes sooner")


@pytest.fixture
def board(tmp_path: Path) -> NodeBoard:
    return NodeBoard(tmp_path / "boards")


def test_a_notice_is_seen_on_its_node_only_until_it_is_withdrawn(board: NodeBoard) -> None:
    assert board.standing("a") is None
    board.announce("a", GOES)
    assert board.standing("a") == GOES
    assert board.standing("b") is None
    board.withdraw("a", GOES.id)
    board.withdraw("a", GOES.id)
    board.withdraw("b", GOES.id)
    assert board.standing("a") is None


def test_of_two_the_earlier_counts_whichever_is_withdrawn_the_other_stands(board: NodeBoard) -> None:
    board.announce("a", GOES)
    board.announce("a", SOONER)
    assert board.standing("a") == SOONER
    board.withdraw("a", SOONER.id)
    assert board.standing("a") == GOES


def test_a_deadline_that_is_brought_forward_replaces_the_one_before(board: NodeBoard) -> None:
    board.announce("a", GOES)
    board.announce("a", replace(GOES, deadline=Instant(LATER - 30 * NS)))
    assert board.standing("a") == replace(GOES, deadline=Instant(LATER - 30 * NS))


def test_a_notice_that_is_said_again_leaves_no_more_time(board: NodeBoard) -> None:
    """A restarted watcher posts the notice again, and the cloud gives no time."""
    board.announce("a", GOES)
    board.announce("a", replace(GOES, deadline=Instant(LATER + 30 * NS), text="again"))
    assert board.standing("a") == GOES
    board.withdraw("a", GOES.id)
    board.announce("a", replace(GOES, deadline=Instant(LATER + 30 * NS)))
    assert board.standing("a") == replace(GOES, deadline=Instant(LATER + 30 * NS))


def test_a_notice_without_a_time_leaves_as_much_as_the_shortest_does(board: NodeBoard) -> None:
    before = wall_clock()
    board.announce("a", replace(GOES, deadline=None))
    found = board.standing("a")
    assert found is not None
    assert found.deadline is not None
    assert before + 15 * NS <= found.deadline <= wall_clock() + 15 * NS


@pytest.mark.parametrize("kind", ["rebalance", "pause"])
def test_what_does_not_end_the_node_is_for_nobody_there(board: NodeBoard, kind: str) -> None:
    board.announce("a", replace(GOES, kind=kind))  # type: ignore[arg-type]
    assert board.standing("a") is None


def test_what_is_no_notice_is_none(board: NodeBoard, tmp_path: Path) -> None:
    folder = tmp_path / "boards" / "a"
    (folder / "a directory").mkdir(parents=True)
    for name, text in {"x": "{", "y": "[]", "z": '{"id": 1}', ".draft": "", "w": "\0" * 9}.items():
        (folder / name).write_text(text)
    assert board.standing("a") is None
    board.announce("a", GOES)
    assert board.standing("a") == GOES


def _write(folder: Path, times: int) -> None:
    for number in range(times):
        sooner = Instant(LATER - number)
        NodeBoard(folder).announce("a", replace(GOES, deadline=sooner, text=str(number) * 5000))


def test_a_reader_sees_a_whole_notice_whoever_writes(tmp_path: Path) -> None:
    board = NodeBoard(tmp_path)
    board.announce("a", GOES)
    writers = [multiprocessing.get_context("fork").Process(target=_write, args=(tmp_path, 300)) for _ in "12"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert board.standing("a") is not None
    for writer in writers:
        writer.join()
    assert sorted(path.name[0] != "." for path in (tmp_path / "a").iterdir()) == [True]
