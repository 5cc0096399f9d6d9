"""`tuner backup` and `tuner restore`, as an operator calls them."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests import fakes
from tests.fakes import FakeService
from tuner.cli.main import app
from tuner.domain.ids import hold_id
from tuner.domain.money import Cost, Money
from tuner.domain.records import EntryPlace
from tuner.ledger import ledger


@dataclass
class Operator:
    """Runs commands with the settings of the service."""

    service: FakeService
    folder: Path

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(app, list(words))


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    return Operator(fakes.service_in(tmp_path / "home"), tmp_path)


def test_restore_names_paused_jobs_and_how_to_resume_them(operator: Operator) -> None:
    service, file = operator.service, str(operator.folder / "b")
    client = fakes.client_of(service)
    job = fakes.submit(client)
    fakes.simulate(service, job, messages=120)
    result = operator("backup", file)
    assert result.exit_code == 0, result.output
    assert ": 1 job, " in result.stdout
    later = fakes.submit(client)

    refused = operator("restore", file)
    assert refused.exit_code == 1
    assert "--replace" in refused.stderr
    restore_result = operator("restore", file, "--replace")
    assert restore_result.exit_code == 0, restore_result.output
    database = f"sqlite:///{operator.folder}/home/tuner.db"
    assert restore_result.stdout.splitlines()[0] == f"database: {database}", "root may have another home"
    for word in (
        job,
        later,
        "tuner resume JOB",
        f"no checkpoint was found in {service.settings.storage}: is TUNER_STORAGE right?",
        "was running, held $",
    ):
        assert word in restore_result.stdout
    assert " step " not in restore_result.stdout, "it lists no checkpoints"
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused"
    service.database.dispose()


def test_restore_prints_the_gpu_hours_that_it_subtracts(operator: Operator) -> None:
    """The replaced database is gone, and the dollars of the job were used up."""
    service, file = operator.service, str(operator.folder / "b")
    job = fakes.submit(fakes.client_of(service), budget={"usd": 0.0006, "gpu_hours": 1.5})
    with service.database.write() as db:
        where = EntryPlace(hold_id(job, "trial_00009", 1, 1), "trial_00009", 1, 1)
        ledger.note_spent(db, service.project, job, where, Cost(Money(600)), service.now())
    assert operator("backup", file).exit_code == 0
    service.database.dispose()
    database = Path(str(service.database.url.database))
    database.write_bytes(b"nonsense" * (database.stat().st_size // 8))
    result = operator("restore", file, "--replace")
    assert "may have spent 1.5 GPU-hours after the backup, which is deducted" in result.stdout
    service.database.dispose()


def test_json_output_of_backup_and_restore_is_complete(operator: Operator) -> None:
    file = str(operator.folder / "b")
    job = fakes.submit(fakes.client_of(operator.service))
    made = json.loads(operator("backup", file, "--json").stdout)
    assert (made["file"], made["kind"], made["jobs"]) == (file, "sqlite", 1)
    restored = json.loads(operator("restore", file, "--replace", "--json").stdout)
    assert restored["database"] == f"sqlite:///{operator.folder}/home/tuner.db"
    assert [paused_job["id"] for paused_job in restored["paused"]] == [job]
    assert restored["taken_at"] == made["taken_at"]
    operator.service.database.dispose()


def test_backup_of_an_empty_home_names_the_setting_to_check(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(operator.folder / "another"))
    result = operator("backup", str(operator.folder / "b"))
    assert result.exit_code == 1
    assert "TUNER_HOME" in result.stderr
    assert not (operator.folder / "b").exists()
