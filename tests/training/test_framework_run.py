"""Test how the checkpoints of a framework are saved on several ranks, with threads as ranks."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tuner.training import framework_run
from tuner.training.channel import Reply
from tuner.training.environments import NO_ARTIFACTS, Artifacts, Home
from tuner.training.framework_run import FrameworkRun

COUNT = 2
HANGS_AFTER_S = 20


class ThreadRanks:
    """Ranks that are threads of one process. An exchange that not all ranks join raises `BrokenBarrierError`."""

    has_nodes = False

    def __init__(self, rank: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.count = rank, COUNT
        self._slots, self._barrier = slots, barrier

    def _all(self, value: Any) -> list[Any]:
        self._slots[self.rank] = value
        self._barrier.wait(HANGS_AFTER_S)
        values = list(self._slots)
        self._barrier.wait(HANGS_AFTER_S)
        return values

    def agreed(self, reply: Any) -> Any:
        return self._all(reply)[0]

    same_place = agreed

    def errors(self, error: str | None) -> list[tuple[int, str]]:
        return [(rank, text) for rank, text in enumerate(self._all(error)) if text is not None]

    def wait(self) -> None:
        self._all(None)


class RecordingHome(Home):
    """A home with predefined replies, which records the outcomes of saves."""

    def __init__(self, directory: Path, replies: Sequence[Reply]) -> None:
        self._directory, self._replies = directory, list(replies)
        self.saves: list[tuple[int, str]] = []

    def checkpoints(self) -> AbstractContextManager[Sequence[Path]]:
        return nullcontext(())

    def report(self, step: int, metrics: Mapping[str, Any], artifacts: Artifacts = NO_ARTIFACTS) -> Reply:
        return self._replies.pop(0)

    def place(self, step: int, part: int = 0) -> Path:
        return self._directory / f"step_{step}"

    def saved(self, step: int, path: Path, part: int = 0) -> None:
        self.saves.append((step, ", ".join(sorted(file.name for file in path.iterdir()))))

    def failed(self, step: int, error: Exception) -> None:
        self.saves.append((step, str(error)))


@pytest.mark.parametrize("by_first", [False, True])
@pytest.mark.parametrize("failing_rank", [0, 1])
@pytest.mark.parametrize("fails_in", ["write", "mkdir"])
def test_failed_keep_on_a_rank_fails_the_save_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_first: bool, failing_rank: int, fails_in: str
) -> None:
    keep, flush = Reply(stop=False, save=False, keep=True), Reply(stop=False, save=False, flush=True)
    save = Reply(stop=False, save=True)
    home = RecordingHome(tmp_path, [keep, keep, flush, save])
    ranks = threading.local()
    slots, barrier = [None] * COUNT, threading.Barrier(COUNT)
    monkeypatch.setattr(framework_run, "find_home", lambda *_: home)
    monkeypatch.setattr(framework_run, "rank_count", lambda: COUNT)
    monkeypatch.setattr(framework_run, "Ranks", lambda: ThreadRanks(ranks.number, slots, barrier))
    make_directory = Path.mkdir

    def mkdir(path: Path, *args: Any, **more: Any) -> None:
        if fails_in == "mkdir" and path.name == "step_2" and ranks.number == failing_rank:
            raise OSError("no inodes are left")
        make_directory(path, *args, **more)

    monkeypatch.setattr(Path, "mkdir", mkdir)

    def train(rank: int) -> int:
        ranks.number = rank
        run = FrameworkRun()
        run.begin()

        def write(place: Path) -> None:
            if fails_in == "write" and run.step == 2 and rank == failing_rank:
                raise OSError("the disk is full")
            (place / f"rank_{rank}").touch()

        for _ in range(4):
            if run.report({}):
                run.save(write, by_first=by_first)
        return run.step

    with ThreadPoolExecutor(COUNT) as threads:
        assert list(threads.map(train, range(COUNT))) == [4, 4]
    files = ", ".join(["rank_0", *([] if by_first else ["rank_1"]), "tuner_step.json"])
    why = "the disk is full" if fails_in == "write" else "no inodes are left"
    failed = (
        [] if by_first and failing_rank == 1 else [(2, f"rank {failing_rank} could not save: OSError: {why}")]
    )
    kept_step = 1 if failed else 2
    assert home.saves == [*failed, (kept_step, files), (4, files)]
    assert (tmp_path / "step_2").exists() != bool(failed)
