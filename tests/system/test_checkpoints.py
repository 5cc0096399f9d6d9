"""Jobs whose workers are killed and whose checkpoints are damaged, with their checkpoints in a folder, and in S3 over HTTP."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.engine.object_storage import Proxy, moto_server
from tests.system import books
from tests.system.serving import Served, until
from tests.system.test_kills import no_report_is_lost_or_doubled
from tuner.engine.checkpoints import MANIFEST

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
OFTEN = {"interval": 0.01, "keep": 3}


@pytest.fixture(scope="module", params=["s3", pytest.param("folder", marks=pytest.mark.soak)])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp(request.param)
    if request.param == "folder":
        yield from _served(Served(home, TUNER_STORAGE=str(home / "shared")))
        return
    with moto_server() as port, pytest.MonkeyPatch.context() as patch:
        proxy = Proxy(port)
        for name, value in environment(proxy).items():
            patch.setenv(name, value)
        fs = fsspec.filesystem("s3", skip_instance_cache=True)
        fs.mkdir("checkpoints")
        yield from _served(Served(home, TUNER_STORAGE="s3://checkpoints/of/jobs"))
        assert any(asked.startswith("PUT /checkpoints/of/jobs/default/job_") for asked in proxy.asked)
        type(fs).clear_instance_cache()
        proxy.close()


def environment(proxy: Proxy) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def _served(served: Served) -> Iterator[Served]:
    try:
        yield served.start()
    finally:
        served.stop()


def test_a_worker_that_is_killed_costs_what_was_trained_since_its_newest_checkpoint(
    stored: Served, tmp_path: Path
) -> None:
    # Until it is killed a step takes longer than a save to the storage does on a busy machine.
    constants = {"step_s": 2.0, "hurry": str(tmp_path / "hurry")}
    job = stored.submit(
        "steady:train", budget={"usd": 0.02, "trials": 1}, constants=constants, checkpoint=OFTEN
    ).id
    stored.reports_at_least(job, 4)
    stored.kill_worker(job)
    (tmp_path / "hurry").touch()
    ended = stored.finished(job)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
    first, second = _attempts(stored, job)[:2]
    assert first.end == "lost"
    # A save may be under way: the worker dies in the step after, and one more may be on its way to the storage.
    assert second.from_step >= first.to_step - 2 > 0, (first, second)
    no_report_is_lost_or_doubled(stored, job)
    books.check(stored.client, job)


@pytest.mark.parametrize("stored", ["s3"], indirect=True)
def test_damaged_checkpoints_are_passed_over_for_the_newest_whole_one(stored: Served) -> None:
    """Each of the newest in another way, while the job is paused. Its trainable says so where a state is not that of its step."""
    job = stored.submit(
        "steady:train",
        budget={"usd": 0.05, "trials": 1},
        fidelity={"min": 1, "max": 2000, "reduction_factor": 3},
        constants={"step_s": 0.1},
        checkpoint={"interval": 0.01, "keep": len(HARMS) + 2},
    ).id
    stored.reports_at_least(job, 1)
    until("there are enough of them", lambda: len(_newest(stored, job)[1]) > len(HARMS))
    stored.client.pause(job)
    until("the job is paused", lambda: stored.client.job(job).state == "paused")
    fs, newest = _newest(stored, job)
    for harm, folder in zip(HARMS.values(), newest, strict=False):
        harm(fs, folder)
    whole, before = step_of(newest[len(HARMS)]), len(_attempts(stored, job))
    stored.client.resume(job)
    until("it goes beyond", lambda: stored.client.job(job).progress.steps > step_of(newest[0]))
    assert _attempts(stored, job)[before].from_step == whole > 0
    stored.client.cancel(job)
    until("it is over", lambda: stored.client.job(job).state == "cancelled")
    no_report_is_lost_or_doubled(stored, job)
    by_kind = books.check(stored.client, job)
    assert by_kind["lost"] > 0, "what was done twice is lost"


@pytest.mark.parametrize("stored", ["s3"], indirect=True)
def test_a_model_of_another_shape_fails_its_trial_and_says_what_to_do(stored: Served, tmp_path: Path) -> None:
    width = tmp_path / "width"
    width.write_text("3")
    job = stored.submit(
        "shaped:train",
        budget={"usd": 0.05, "trials": 1},
        fidelity={"min": 1, "max": 200, "reduction_factor": 3},
        constants={"width_file": str(width)},
    ).id
    stored.reports_at_least(job, 3)
    stored.client.pause(job)
    until("the job is paused", lambda: stored.client.job(job).state == "paused")
    width.write_text("4")
    stored.client.resume(job)
    stored.finished(job)
    last = _attempts(stored, job)[-1]
    assert last.end == "failed"
    assert "size mismatch" in last.detail
    assert "build the same parts from the same config" in last.detail


def _attempts(served: Served, job: str) -> list[Any]:
    trials = list(served.client.trials(job))
    return served.client.trial(job, trials[0].id).attempt_list if trials else []


def _newest(served: Served, job: str) -> tuple[Any, list[str]]:
    """The storage as somebody else's client sees it, and where in it the checkpoints of the job's first trial lie, newest first."""
    fs, root = fsspec.core.url_to_fs(served.storage, skip_instance_cache=True, use_listings_cache=False)
    found = fs.glob(f"{root}/default/{job}/trial_00000/step_*")  # none before the first one has come
    return fs, [folder.rstrip("/") for folder in sorted(found, reverse=True)]


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
