"""Test notices posted for a node's workers: complete or absent, for this node only, and gone when withdrawn."""

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.cluster.notices.node_board import NodeBoard
from tuner.cluster.notices.notice import Notice
from tuner.domain.time import NS, Instant

LATER = Instant(1_800_000_000 * NS)
GOES = Notice("aws/instance-action", LATER, "goes")
SOONER = Notice("operator/1", Instant(LATER - NS), "goes sooner")


@pytest.fixture
def board(tmp_path: Path) -> NodeBoard:
    return NodeBoard(tmp_path / "boards")


def test_notice_is_seen_only_on_its_node_until_withdrawn(board: NodeBoard) -> None:
    assert board.earliest_notice("a") is None
    board.announce("a", GOES)
    assert board.earliest_notice("a") == GOES
    assert board.earliest_notice("b") is None
    board.withdraw("a", GOES.id)
    board.withdraw("a", GOES.id)
    board.withdraw("b", GOES.id)
    assert board.earliest_notice("a") is None


def test_earlier_notice_counts_and_the_other_remains_after_withdrawal(board: NodeBoard) -> None:
    board.announce("a", GOES)
    board.announce("a", SOONER)
    assert board.earliest_notice("a") == SOONER
    board.withdraw("a", SOONER.id)
    assert board.earliest_notice("a") == GOES


def test_earlier_deadline_replaces_the_previous_deadline(board: NodeBoard) -> None:
    board.announce("a", GOES)
    board.announce("a", replace(GOES, deadline=Instant(LATER - 30 * NS)))
    assert board.earliest_notice("a") == replace(GOES, deadline=Instant(LATER - 30 * NS))


def test_repeated_notice_does_not_extend_the_deadline(board: NodeBoard) -> None:
    """A restarted watcher posts the notice with a later deadline if the cloud gives no time."""
    board.announce("a", GOES)
    board.announce("a", replace(GOES, deadline=Instant(LATER + 30 * NS), text="again"))
    assert board.earliest_notice("a") == GOES
    board.withdraw("a", GOES.id)
    board.announce("a", replace(GOES, deadline=Instant(LATER + 30 * NS)))
    assert board.earliest_notice("a") == replace(GOES, deadline=Instant(LATER + 30 * NS))


def test_invalid_files_on_the_board_are_ignored(board: NodeBoard, tmp_path: Path) -> None:
    folder = tmp_path / "boards" / "a"
    (folder / "a directory").mkdir(parents=True)
    for name, text in {"x": "{", "y": "[]", "z": '{"id": 1}', ".draft": "", "w": "\0" * 9}.items():
        (folder / name).write_text(text)
    assert board.earliest_notice("a") is None
    board.announce("a", GOES)
    assert board.earliest_notice("a") == GOES


def _write(folder: Path, times: int) -> None:
    for number in range(times):
        sooner = Instant(LATER - number)
        NodeBoard(folder).announce("a", replace(GOES, deadline=sooner, text=str(number) * 5000))


def test_reader_sees_complete_notice_during_concurrent_writes(tmp_path: Path) -> None:
    board = NodeBoard(tmp_path)
    board.announce("a", GOES)
    writers = [multiprocessing.get_context("fork").Process(target=_write, args=(tmp_path, 300)) for _ in "12"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert board.earliest_notice("a") is not None
    for writer in writers:
        writer.join()
    assert sorted(path.name[0] != "." for path in (tmp_path / "a").iterdir()) == [True]
