"""TensorBoard reads the recorded data, even if a crash cut off the last event."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService
from tests.mirrors.following import mirror_all
from tests.mirrors.test_optuna import trials_of
from tuner.service import mirroring


def check_equal(client: TestClient, job: str, folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # takes a second

    recorded = trials_of(client, job)
    assert len(recorded) > 3
    for trial in recorded:
        accumulator = EventAccumulator(str(folder / f"digits-{job}" / trial["id"])).Reload()
        reported = {point["step"]: point for point in trial["curve"]}
        for tag, name in (("acc", "metric"), ("cost_usd", "cost_usd")):
            shown = [(scalar.step, scalar.value) for scalar in accumulator.Scalars(tag)] if reported else []
            assert [step for step, _ in shown] == sorted(reported)
            assert [value for _, value in shown] == pytest.approx([reported[step][name] for step, _ in shown])
        assert "_hparams_/session_start_info" in accumulator.summary_metadata


def test_runs_equal_the_record_after_truncated_event_files(
    service: FakeService, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.mirrors.tensorboard import TensorBoardMirror  # imports torch, by way of tensorboardX

    monkeypatch.setattr(mirroring, "REPORTS_AT_ONCE", 5)
    job = fakes.submit(client)
    run = fakes.simulate(service, job, messages=60)
    mirror_all(service, lambda: TensorBoardMirror(tmp_path))
    check_equal(client, job, tmp_path)
    files = sorted(tmp_path.glob("*/*/events*"))
    for number, file in enumerate(files):
        data = file.read_bytes()
        file.write_bytes(data[: len(data) - 7 * number % len(data)])  # as after a crash during the write
    (tmp_path / f"digits-{job}" / ".position").unlink()
    run.run(turns_max=100_000)
    mirror_all(service, lambda: TensorBoardMirror(tmp_path))
    check_equal(client, job, tmp_path)
    sizes = [file.stat().st_size for file in files]
    mirror_all(service, lambda: TensorBoardMirror(tmp_path))
    assert [file.stat().st_size for file in files] == sizes
