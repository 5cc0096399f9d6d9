"""Test jobs whose workers are killed and whose checkpoints are damaged, with the checkpoints in S3 over HTTP."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.waiting import is_dead
from tests.clusters import storage_of
from tests.system import books
from tests.system.decisions import decided
from tests.system.serving import Served, children, line, until
from tuner.checkpoints.checkpoints import MANIFEST

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
OFTEN = {"interval": 0.01, "keep": 3}


@pytest.mark.extended
def test_killed_worker_loses_only_steps_since_the_newest_checkpoint(
    breakable: Served, tmp_path: Path
) -> None:
    # Until the kill, a step takes longer than a save to the storage takes on a busy machine.
    constants = {"step_s": 2.0, "speed_up": str(tmp_path / "speed_up")}
    job = breakable.submit(
        "steady:train", budget={"usd": 0.02, "trials": 1}, constants=constants, checkpoint=OFTEN
    ).id
    breakable.reports_at_least(job, 4)
    breakable.kill_worker(job)
    (tmp_path / "speed_up").touch()
    ended = breakable.finished(job)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
    first, second = _attempts(breakable, job)[:2]
    assert first.end == "lost"
    # A save may be in progress when the worker dies, one step later, and one more may be on its way to the
    # storage.
    assert second.from_step >= first.to_step - 2 > 0, (first, second)
    decided(breakable.client, job)
    books.check(breakable.client, job)


def test_resume_skips_damaged_checkpoints_and_cancel_kills_hanging_code(
    breakable: Served, tmp_path: Path
) -> None:
    """The newest checkpoints are damaged, each in a different way, while the job is paused. The trainable fails
    if a restored state does not match its step. When the job is cancelled, its code hangs and ignores signals.
    """
    hang = tmp_path / "hang"
    job = breakable.submit(
        "steady:train",
        budget={"usd": 0.05, "trials": 1},
        fidelity={"min": 1, "max": 2000, "reduction_factor": 3},
        constants={"step_s": 0.1, "hang": str(hang)},
        checkpoint={"interval": 0.01, "keep": len(HARMS) + 2},
    ).id
    breakable.reports_at_least(job, 1)
    until("there are enough of them", lambda: len(_newest(breakable, job)[1]) > len(HARMS))
    breakable.client.pause(job)
    until("the job is paused", lambda: breakable.client.job(job).state == "paused")
    assert breakable.client.job(job).spend.held_usd == 0
    assert not breakable.drivers(job)[1:]
    fs, newest = _newest(breakable, job)
    for harm, folder in zip(HARMS.values(), newest, strict=False):
        harm(fs, folder)
    whole, before = step_of(newest[len(HARMS)]), len(_attempts(breakable, job))
    breakable.client.resume(job)
    until("it goes beyond", lambda: breakable.client.job(job).progress.steps > step_of(newest[0]))
    assert _attempts(breakable, job)[before].from_step == whole > 0
    hang.touch()
    until("its code hangs", lambda: not hang.exists())
    check_cancel(breakable, job)
    decided(breakable.client, job)
    by_kind = books.check(breakable.client, job)
    assert by_kind["lost"] > 0, "what was done twice is lost"


def check_cancel(served: Served, job: str) -> None:
    """Cancel a job whose code hangs, and check that its process is killed."""
    servers = [p for worker in served.workers() for p in children(worker) if "fork_server" in line(p)]
    (child,) = [child for server in servers for child in children(server)]
    began = time.monotonic()
    served.client.cancel(job)
    until("the child is gone", lambda: is_dead(child))
    freed_s = time.monotonic() - began
    until("the job is cancelled", lambda: served.client.job(job).state == "cancelled")
    over_s = time.monotonic() - began
    print(f"cancel: the worker was free after {freed_s:.2f} s, the job cancelled after {over_s:.2f} s")
    assert served.client.cancel(job).stop_reason == "cancelled"


@pytest.mark.extended
def test_changed_model_shape_fails_the_trial_with_advice(breakable: Served, tmp_path: Path) -> None:
    width = tmp_path / "width"
    width.write_text("3")
    job = breakable.submit(
        "shaped:train",
        budget={"usd": 0.05, "trials": 1},
        fidelity={"min": 1, "max": 200, "reduction_factor": 3},
        constants={"width_file": str(width)},
    ).id
    breakable.reports_at_least(job, 3)
    breakable.client.pause(job)
    until("the job is paused", lambda: breakable.client.job(job).state == "paused")
    width.write_text("4")
    breakable.client.resume(job)
    breakable.finished(job)
    last = _attempts(breakable, job)[-1]
    assert last.end == "failed"
    assert "size mismatch" in last.detail
    assert "build the same parts from the same config" in last.detail


def _attempts(served: Served, job: str) -> list[Any]:
    trials = list(served.client.trials(job))
    return served.client.trial(job, trials[0].id).attempt_list if trials else []


def _newest(served: Served, job: str) -> tuple[Any, list[str]]:
    """Return the storage, and the folders of the checkpoints of the job's first trial, newest first."""
    fs, root = storage_of(served), served.storage.removeprefix("s3://")
    folders = fs.glob(f"{root}/default/{job}/trial_00000/step_*")
    return fs, [folder.rstrip("/") for folder in sorted(folders, reverse=True)]


def step_of(folder: str) -> int:
    return int(folder.rsplit("step_", 1)[1][:8])


def _flip(fs: Any, folder: str) -> None:
    path = f"{folder}/state.pt"
    data = bytearray(fs.cat_file(path))
    data[len(data) // 2] ^= 1
    fs.pipe_file(path, bytes(data))


def _manifest(**changes: Any) -> Callable[[Any, str], None]:
    def change(fs: Any, folder: str) -> None:
        manifest = json.loads(fs.cat_file(f"{folder}/{MANIFEST}"))
        fs.pipe_file(f"{folder}/{MANIFEST}", json.dumps({**manifest, **changes}).encode())

    return change


HARMS: dict[str, Callable[[Any, str], None]] = {
    "a flipped byte": _flip,
    "a missing shard": lambda fs, folder: fs.rm(f"{folder}/state.pt"),
    "a manifest that lies of its step": _manifest(step=1),
    "a manifest that lies of its files": _manifest(
        files=[{"path": "state.pt", "bytes": 3, "sha256": "0" * 64}]
    ),
    "a newer version": _manifest(version=99),
    "no manifest at all": lambda fs, folder: fs.pipe_file(f"{folder}/{MANIFEST}", b""),
}
