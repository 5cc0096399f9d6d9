"""Download of checkpoints over REST, with the client and on the command line."""

import base64
import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.cli.main import app
from tuner.client import ApiError, Client
from tuner.database.tables import checkpoints
from tuner.store import answers

CONTENT = b"weights" * 500


class Stored:
    """A finished job, and the checkpoint files of its trial with the most checkpoints."""

    def __init__(self, service: FakeService, client: TestClient, folder: Path) -> None:
        self.service, self.client = service, client
        self.job = fakes.submit(client, algorithm={"scheduler": "asha", "sampler": "random"})
        fakes.simulate(service, self.job)
        with service.database.read() as db:
            trials = [row.trial for row in answers.all_trials(db, self.job, "max")]
            rows = {trial: answers.checkpoints_of(db, self.job, trial) for trial in trials}
        self.trial = max(rows, key=lambda trial: len(rows[trial]))
        self.rows = rows[self.trial]
        assert len(self.rows) > 1
        store = CheckpointStore(service.settings.storage, "default", self.job)
        for row in self.rows:
            work = folder / f"work-{row.step}"
            work.mkdir()
            (work / "state.pt").write_bytes(CONTENT + str(row.step).encode())
            store.publish(self.trial, row.attempt, row.step, work)
        self.best = max(self.rows, key=lambda row: (row.value or 0.0, -row.step))
        self.path = f"/v1/jobs/{self.job}/trials/{self.trial}/checkpoint"


service, client = fakes.fixtures("module")


@pytest.fixture(scope="module")
def stored(service: FakeService, client: TestClient, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(service, client, tmp_path_factory.mktemp("stored"))


@contextlib.contextmanager
def damaged(stored: Stored, row: Any, content: bytes) -> Iterator[None]:
    """Replace the content of a checkpoint's file for the time of the context."""
    folder = Path(stored.service.settings.storage) / "default" / stored.job / stored.trial
    file = folder / f"step_{row.step:08d}-a{row.attempt}" / "state.pt"
    before = file.read_bytes()
    file.write_bytes(content)
    yield
    file.write_bytes(before)


def test_best_checkpoint_is_sent_unless_a_step_is_given(stored: Stored) -> None:
    best = stored.client.get(stored.path)
    assert best.headers["content-type"] == "application/x-tar"
    assert int(best.headers["tuner-step"]) == stored.best.step
    assert len(best.content) == int(best.headers["content-length"])
    for row in stored.rows:
        named = stored.client.get(stored.path, params={"step": row.step})
        assert CONTENT + str(row.step).encode() in named.content
    detail = stored.client.get(stored.path.removesuffix("/checkpoint")).json()
    assert [checkpoint["step"] for checkpoint in detail["checkpoints"]] == [row.step for row in stored.rows]


def test_range_request_resumes_a_download(stored: Stored) -> None:
    whole = stored.client.get(stored.path)
    size, etag = len(whole.content), whole.headers["etag"]

    def part(wanted: str, **headers: str) -> tuple[int, bytes, str]:
        answer = stored.client.get(stored.path, headers={"Range": wanted, **headers})
        return answer.status_code, answer.content, answer.headers.get("content-range", "")

    assert part("bytes=100-") == (206, whole.content[100:], f"bytes 100-{size - 1}/{size}")
    assert part("bytes=0-9") == (206, whole.content[:10], f"bytes 0-9/{size}")
    assert part("bytes=-10") == (206, whole.content[-10:], f"bytes {size - 10}-{size - 1}/{size}")
    assert part("bytes=100-", **{"If-Range": etag})[0] == 206
    for ignored in ("bytes=9-5", "bytes=0-1,5-9", "lines=1-", "bytes=-"):
        assert part(ignored) == (200, whole.content, "")
    assert part("bytes=100-", **{"If-Range": '"another"'}) == (200, whole.content, "")
    beyond = stored.client.get(stored.path, headers={"Range": f"bytes={size}-"})
    check_problem(beyond, 416)
    assert beyond.headers["content-range"] == f"bytes */{size}"


def test_one_file_is_sent_with_its_digest(stored: Stored) -> None:
    content = CONTENT + str(stored.best.step).encode()
    whole = stored.client.get(stored.path, params={"file": "state.pt"})
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    assert (whole.content, whole.headers["repr-digest"]) == (content, f"sha-256=:{digest}:")
    assert whole.headers["content-disposition"].endswith('-state.pt"')
    part = stored.client.get(stored.path, params={"file": "state.pt"}, headers={"Range": "bytes=7-13"})
    assert (part.status_code, part.content) == (206, content[7:14])
    missing = stored.client.get(stored.path, params={"file": "../state.pt"})
    assert "has no file '../state.pt'; it has state.pt" in check_problem(missing, 404)["detail"]


def test_missing_checkpoint_is_refused_with_the_reason(stored: Stored) -> None:
    def why(path: str) -> str:
        detail: str = check_problem(stored.client.get(path), 404)["detail"]
        return detail

    assert "no trial 'trial_99999'" in why(f"/v1/jobs/{stored.job}/trials/trial_99999/checkpoint")
    assert "has no checkpoint of step 99999; steps with a checkpoint: " in why(f"{stored.path}?step=99999")
    row = stored.rows[0]
    with damaged(stored, row, b""):
        assert "state.pt has 0 bytes" in why(f"{stored.path}?step={row.step}")
    waiting = fakes.submit(stored.client)
    fakes.simulate(stored.service, waiting, messages=8)
    assert "has no checkpoint" in why(f"/v1/jobs/{waiting}/trials/trial_00000/checkpoint")


def test_checkpoint_command_downloads_into_a_new_directory(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "tuner.client.Client",
        lambda: Client("http://tuner", fakes.KEY, transport=stored.client._transport),
    )
    to = tmp_path / "model"
    arguments = ["checkpoint", "get", stored.job, "--trial", stored.trial, "--to", str(to)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert f"{stored.trial} at step {stored.best.step}: " in done.output
    assert (to / "state.pt").read_bytes() == CONTENT + str(stored.best.step).encode()
    assert sorted(path.name for path in tmp_path.glob("*model*")) == ["model"]
    again = CliRunner().invoke(app, [*arguments, "--json"])
    assert again.exit_code == 1
    assert "exists; name an empty or a new directory" in again.stderr
    to2 = tmp_path / "json"
    as_json = CliRunner().invoke(app, [*arguments[:-1], str(to2), "--json"])
    assert json.loads(as_json.stdout)["step"] == stored.best.step


@pytest.mark.parametrize("has_best", [True, False])
def test_best_trial_without_a_checkpoint_of_its_best_step_gives_the_best_that_it_has(
    service: FakeService, client: TestClient, tmp_path: Path, has_best: bool
) -> None:
    job = fakes.submit(client, algorithm={"scheduler": "asha", "sampler": "random"})
    fakes.simulate(service, job)
    best = client.get(f"/v1/jobs/{job}/best").json()
    with service.database.write() as db:
        rows = answers.checkpoints_of(db, job, best["trial"])
        if not has_best:
            c = checkpoints.c
            mine = (c.job == job) & (c.trial == best["trial"]) & (c.step == best["step"])
            assert db.execute(delete(checkpoints).where(mine)).rowcount == 1
            rows = [row for row in rows if row.step != best["step"]]
    store = CheckpointStore(service.settings.storage, "default", job)
    for row in rows:
        work = tmp_path / f"work-{row.step}"
        work.mkdir()
        (work / "state.pt").write_bytes(b"weights")
        store.publish(best["trial"], row.attempt, row.step, work)
    wanted = max(rows, key=lambda row: (row.value or 0.0, -row.step)).step
    downloaded = Client("http://tuner", fakes.KEY, transport=client._transport).download_checkpoint(
        job, to=tmp_path / "model"
    )
    assert (downloaded.trial, downloaded.step) == (best["trial"], wanted)
    assert (downloaded.step == best["step"]) == has_best


def test_files_that_do_not_match_the_manifest_are_discarded(stored: Stored, tmp_path: Path) -> None:
    row = stored.best
    client = Client("http://tuner", fakes.KEY, transport=stored.client._transport)
    other = b"x" * len(CONTENT + str(row.step).encode())
    trial = client.trial(stored.job, stored.trial)
    with damaged(stored, row, other), pytest.raises(ApiError, match=r"state\.pt: damaged"):
        trial.download(tmp_path / "model", step=row.step)
    assert not list(tmp_path.glob("*model*"))
    assert trial.download(tmp_path / "model").step == row.step
    assert (tmp_path / "model" / "state.pt").read_bytes() == CONTENT + str(row.step).encode()
