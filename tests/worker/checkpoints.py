"""Checkpoints of one trial for tests: publish them, change their files in the storage, and read them back."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from tuner.checkpoints.checkpoints import CheckpointId, CheckpointStore

TRIAL = "trial_00000"
PLACE = ("default", "job_1", TRIAL)


def two_files(step: int) -> dict[str, bytes]:
    return {"state.pt": f"step-{step}".encode() * 1000, "shards/0.bin": f"{step}-pets".encode() * 1000}


@dataclass
class Checkpoints:
    """The checkpoints in the storage `url`. `work` is a directory for those that are made and fetched."""

    url: str
    work: Path
    contents: Callable[[int], Mapping[str, bytes]] = two_files  #: The files of a step's checkpoint by name.

    def __post_init__(self) -> None:
        self.store = CheckpointStore(self.url, *PLACE[:2])
        self.fs: Any
        self.fs, self.root = fsspec.core.url_to_fs("/".join((self.url, *PLACE)), use_listings_cache=False)

    def stage(self, step: int, files: Mapping[str, bytes] | None = None) -> Path:
        """Write the files of a checkpoint to a directory, as user code does."""
        source = Path(tempfile.mkdtemp(dir=self.work))
        for name, data in (self.contents(step) if files is None else files).items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(data)
        return source

    def publish(self, *steps: int, attempt: int = 1) -> None:
        for step in steps:
            self.store.publish(TRIAL, attempt, step, self.stage(step))

    def newest(self, at_most: int = 99, **how: Any) -> int | None:
        """Restore the newest valid checkpoint, check the content of its files, and return its step."""
        into = Path(tempfile.mkdtemp(dir=self.work))
        restored = self.store.newest_valid(TRIAL, into, at_most=at_most, **how)
        if restored is None:
            return None
        step, folder = restored
        expected = self.contents(step)
        assert {name: (folder / name).read_bytes() for name in expected} == expected
        return step

    def path(self, checkpoint: CheckpointId, name: str) -> str:
        return f"{self.root}/{checkpoint.name}/{name}"

    def names(self) -> list[str]:
        """Return the names of the trial's directories in the storage."""
        return sorted(str(path).rsplit("/", 1)[-1] for path in self.fs.ls(self.root, detail=False))

    def change(self, checkpoint: CheckpointId, name: str, change: Callable[[bytes], bytes]) -> None:
        path = self.path(checkpoint, name)
        self.fs.pipe_file(path, change(self.fs.cat_file(path)))
