"""Jobs that continue trials of earlier jobs: which trials they may continue, the cost, and how it is reported."""

import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import func, select, update
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService, body
from tests.service.passes import row_of
from tuner.checkpoints.checkpoints import CheckpointId, CheckpointStore
from tuner.cli import render
from tuner.database.tables import reports
from tuner.domain import events as ev
from tuner.domain.ids import trial_id
from tuner.domain.records import INHERITED, WarmStartTrial
from tuner.driver.warm_start_copies import Copier, warm_starts_of
from tuner.driver.warm_starts import WarmStarts
from tuner.schemas.answers import JobReport
from tuner.service.cluster import import_path
from tuner.service.replay import replay
from tuner.simulator.world import Faults
from tuner.store import jobs
from tuner.store.warm_starts import find_warm_starts, past_trials
from tuner.tuning.samplers import sampler_for
from tuner.worker.environment import code_digest

CODE = code_digest(fakes.ENTRY, import_path())


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[FakeService, str]:
    """Return a service with a job that ended while some of its trials were unfinished. Tests copy its database."""
    service = fakes.service_in(tmp_path_factory.mktemp("ended"))
    job = fakes.submit(fakes.client_of(service), budget={"usd": 0.002})
    with service.database.write() as db:
        jobs.note_code(db, job, CODE)
    fakes.simulate(service, job)
    service.database.dispose()
    return service, job


@pytest.fixture
def source(service: FakeService, ended: tuple[FakeService, str]) -> str:
    """Return an ended job in the database of `service`."""
    other, job = ended
    shutil.copyfile(str(other.database.url.database), str(service.database.url.database))
    service.now.at = other.now.at
    return job


def warm(client: TestClient, *sources: str, **changes: Any) -> str:
    return fakes.submit(client, warm_start={"jobs": list(sources), "checkpoints": True}, **changes)


def matching_warm_starts(
    service: FakeService, job: str, *, code: str | None = CODE, limit: int = 10
) -> list[WarmStartTrial]:
    with service.database.read() as db:
        return find_warm_starts(db, job, jobs.get(db, job).spec, code=code or "", limit=limit)


def warm_starts(service: FakeService, job: str) -> WarmStarts:
    """Return the warm start's trials as if their checkpoints had been copied."""
    own = {
        n: replace(
            warm_start, checkpoint=replace(warm_start.checkpoint, trial=trial_id(n), attempt=INHERITED)
        )
        for n, warm_start in enumerate(matching_warm_starts(service, job))
    }
    return WarmStarts(own)


def trials(client: TestClient, job: str) -> list[dict[str, Any]]:
    items = client.get(f"/v1/jobs/{job}/trials?limit=12").json()["items"]
    return [client.get(f"/v1/jobs/{job}/trials/{trial['id']}").json() for trial in items]


def test_best_trials_with_checkpoints_are_continued(
    service: FakeService, client: TestClient, source: str
) -> None:
    inherited = matching_warm_starts(service, warm(client, source), limit=5)
    best = {
        trial["id"]: trial["metric"]
        for trial in client.get(f"/v1/jobs/{source}/trials?limit=200").json()["items"]
    }
    scores = [best[inherited_trial.trial] for inherited_trial in inherited]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    for warm_start in inherited:
        assert warm_start.reports[-1].step == warm_start.checkpoint.step
    everyone = matching_warm_starts(service, warm(client, source), limit=1000)
    assert max(best[inherited_trial.trial] for inherited_trial in everyone) == scores[0]
    assert len({str(inherited_trial.config) for inherited_trial in everyone}) == len(everyone)


def test_trials_are_ranked_by_their_best_metric_not_by_that_of_their_checkpoint(
    service: FakeService, client: TestClient, source: str
) -> None:
    job = warm(client, source)
    _, *others = matching_warm_starts(service, job, limit=1000)
    last = [trial for trial in others if len(trial.reports) > 1][-1]
    with service.database.write() as db:
        r = reports.c
        early = (r.job == source) & (r.trial == last.trial) & (r.step == last.reports[0].step)
        db.execute(update(reports).where(early).values(value=0.999))
    first = matching_warm_starts(service, job, limit=1)[0]
    assert (first.trial, first.checkpoint) == (last.trial, last.checkpoint)
    assert first.reports[-1] == last.reports[-1]


@pytest.mark.parametrize("rules", [5, ev.RULES])
def test_steps_after_the_last_one_of_the_new_job_are_not_continued(
    service: FakeService, client: TestClient, source: str, monkeypatch: pytest.MonkeyPatch, rules: int
) -> None:
    """A job that was launched with older rules continues the same trials after each restart."""
    monkeypatch.setattr(ev, "RULES", rules)
    job = warm(client, source, fidelity={"unit": "epoch", "min": 1, "max": 3, "reduction_factor": 3})
    fakes.simulate(service, job, messages=1)
    earlier = matching_warm_starts(service, job, limit=1000)
    assert any(trial.checkpoint.step > 3 for trial in earlier) is (rules == 5)
    r = reports.c
    counts = (r.job == source) & (True if rules == 5 else r.step <= 3)
    with service.database.read() as db:
        rows = db.execute(select(r.trial, func.max(r.value)).where(counts).group_by(r.trial)).all()
    best = {trial: value for trial, value in rows}
    scores = [best[trial.trial] for trial in earlier]
    assert len(scores) > 5
    assert scores == sorted(scores, reverse=True)


def test_job_that_was_not_launched_ignores_steps_after_its_last_one(
    service: FakeService, client: TestClient, source: str
) -> None:
    job = warm(client, source, fidelity={"unit": "epoch", "min": 1, "max": 3, "reduction_factor": 3})
    steps = [trial.checkpoint.step for trial in matching_warm_starts(service, job, limit=1000)]
    assert max(steps) == 3


def test_trials_of_other_code_are_not_continued(
    service: FakeService, client: TestClient, source: str
) -> None:
    assert matching_warm_starts(service, warm(client, source), code="other") == []


@pytest.mark.parametrize("scheduler", ["asha", "asha_stopping", "none", "auto"])
def test_continued_trial_starts_at_its_step_and_reports_its_total_cost(
    service: FakeService, client: TestClient, source: str, scheduler: str
) -> None:
    algorithm = {"scheduler": scheduler, "sampler": "random", "seed": 5}
    job = warm(client, source, algorithm=algorithm, budget={"usd": 0.0004})
    theirs = warm_starts(service, job)
    fakes.simulate(service, job, warm_starts=theirs)
    went_on = 0
    for trial, warm_start in zip(trials(client, job), theirs.by_number.values(), strict=False):
        step, cost = warm_start.checkpoint.step, warm_start.reports[-1].cost.usd
        assert trial["config"] == warm_start.config
        assert trial["inherited"] == {
            "job": source,
            "trial": warm_start.trial,
            "step": step,
            "cost_usd": cost.usd,
            "gpu_hours": 0,
        }
        costs = {point["step"]: point["cost_usd"] for point in trial["curve"]}
        assert [costs[row.step] for row in warm_start.reports] == [
            row.cost.usd.usd for row in warm_start.reports
        ]
        if trial["attempt_list"]:
            went_on += 1
            assert trial["attempt_list"][0]["from_step"] == step
            assert min((point for point in costs if point > step), default=step + 1) == step + 1
            paid = sum(trial["bill"].values())
            assert max(costs.values()) <= cost.usd + paid + 1e-6
            assert max(costs.values()) > cost.usd
    assert went_on or scheduler == "asha_stopping"
    others = trials(client, job)[len(theirs.by_number) :]
    assert all(trial["inherited"] is None for trial in others)
    spent = client.get(f"/v1/jobs/{job}").json()["spend"]["usd"]
    assert spent <= 0.0004


@pytest.mark.parametrize(
    ("scheduler", "constraints"),
    [("asha", []), ("auto", []), ("asha", [{"metric": "acc", "min": 2}])],
    ids=["asha", "auto", "constraint"],
)
def test_replay_compares_a_continued_trial_with_the_earlier_job(
    service: FakeService, client: TestClient, source: str, scheduler: str, constraints: list[dict[str, Any]]
) -> None:
    algorithm = {"scheduler": scheduler, "sampler": "random", "seed": 5}
    changes = {"algorithm": algorithm, "budget": {"usd": 0.0004}, "constraints": constraints}
    job = warm(client, source, **changes)
    own = warm_starts(service, job)
    assert any(row.violation for past in own.by_number.values() for row in past.reports) is bool(constraints)
    fakes.simulate(service, job, warm_starts=own, faults=Faults(driver_restart=0.05))
    replayed = replay(service, job).replayed
    assert (replayed.difference, replayed.unchecked) == (None, ())
    other = warm(client, source, **changes)
    theirs = warm_starts(service, other)
    first = theirs.by_number[0]
    forged = replace(first, config={**first.config, "width": 9})
    fakes.simulate(service, other, warm_starts=WarmStarts({**theirs.by_number, 0: forged}))
    difference = replay(service, other).replayed.difference
    assert difference is not None
    assert (difference.code, difference.trial) == ("warm_start", "trial_00000")


@pytest.mark.parametrize("rules", [2, ev.RULES])
def test_replay_learns_from_the_earlier_job_by_the_rules_of_the_launch(
    service: FakeService, client: TestClient, source: str, monkeypatch: pytest.MonkeyPatch, rules: int
) -> None:
    """Before version 3, the scores of steps after the job's last step counted."""
    monkeypatch.setattr(ev, "RULES", rules)
    fidelity = {"unit": "epoch", "min": 1, "max": 2, "reduction_factor": 2}
    algorithm = {"scheduler": "asha", "sampler": "tpe"}
    job = fakes.submit(client, warm_start={"jobs": [source]}, fidelity=fidelity, algorithm=algorithm)
    with service.database.read() as db:
        spec = jobs.get(db, job).spec
    history = past_trials(service.database, job, spec, rules=rules)
    assert any(point.step > 2 for trial in history for point in trial.curve) is (rules == 2)
    fakes.simulate(service, job, messages=40, sampler=lambda: sampler_for(spec, history))
    assert replay(service, job).replayed.difference is None


def test_best_under_a_cost_limit_counts_the_spend_of_the_earlier_job(
    service: FakeService, client: TestClient, source: str
) -> None:
    job = warm(client, source, budget={"usd": 0.001})
    fakes.simulate(service, job, warm_starts=warm_starts(service, job), messages=3)
    theirs = client.get(f"/v1/jobs/{source}/best").json()
    mine = client.get(f"/v1/jobs/{job}/best").json()
    kept = max(matching_warm_starts(service, job), key=lambda trial: trial.reports[-1].value or 0).reports[-1]
    assert mine["metric"] >= (kept.value or 0)
    assert (mine["config"], mine["cost_usd"]) == (theirs["config"], theirs["cost_usd"])
    cheap = client.get(f"/v1/jobs/{job}/best?max_cost_usd={mine['cost_usd'] / 2:.6f}")
    assert cheap.status_code == 404 or cheap.json()["cost_usd"] <= mine["cost_usd"] / 2


def test_report_counts_the_inherited_best_as_free(
    service: FakeService, client: TestClient, source: str
) -> None:
    job = warm(client, source, budget={"usd": 0.001})
    fakes.simulate(service, job, warm_starts=warm_starts(service, job))
    answer = client.get(f"/v1/jobs/{job}/report")
    assert answer.status_code == 200, answer.text
    report, shown = answer.json(), client.get(f"/v1/jobs/{job}").json()
    first, best = report["best_curve"][0], report["best_curve"][-1]
    assert (first["trial"], first["spent_usd"]) == ("trial_00000", 0)
    assert (best["trial"], best["step"], best["value"]) == tuple(
        shown["best"][name] for name in ("trial", "step", "metric")
    )
    assert shown["spend"]["usd"] > 0


def test_report_names_the_job_that_paid_for_the_best_and_shows_no_saving(
    service: FakeService, client: TestClient, source: str
) -> None:
    job = warm(client, source, budget={"usd": 0.001})
    fakes.simulate(service, job, warm_starts=warm_starts(service, job))
    report = client.get(f"/v1/jobs/{job}/report").json()
    inherited = client.get(f"/v1/jobs/{job}/trials/{report['best']['trial']}").json()["inherited"]
    assert inherited["job"] == source
    assert report["inherited"] == inherited
    assert any(estimate["usd"] is not None for estimate in report["estimates"])
    assert [estimate["saved_usd"] for estimate in report["estimates"]] == [None, None]
    file = StringIO()
    Console(file=file, width=300).print(render.report(JobReport(**report)))
    shown = file.getvalue()
    assert f"{source} had already reached acc" in shown
    assert f"it continued {inherited['trial']} of {source}" in shown
    assert client.get(f"/v1/jobs/{source}/report").json()["inherited"] is None


def test_rebuilt_job_makes_the_same_decisions_about_continued_trials(
    service: FakeService, client: TestClient, source: str
) -> None:
    job = warm(client, source, budget={"usd": 0.001})
    theirs = warm_starts(service, job)
    run = fakes.simulate(service, job, warm_starts=theirs, messages=30)
    before = [(t.config, t.steps, t.status in ("completed", "stopped")) for t in run.loop.state.trials]
    run.warm_starts = WarmStarts()
    run._restart(run.loop)
    after = [(t.config, t.steps, t.status in ("completed", "stopped")) for t in run.loop.state.trials]
    assert after[: len(before)] == before
    run.run()


def test_target_already_reached_by_an_earlier_job_costs_nothing(
    service: FakeService, client: TestClient, source: str
) -> None:
    reached = matching_warm_starts(service, warm(client, source))[0].reports[-1].value
    job = warm(client, source, objective={"metric": "acc", "mode": "max", "target": reached})
    fakes.simulate(service, job, warm_starts=warm_starts(service, job))
    shown = client.get(f"/v1/jobs/{job}").json()
    assert (shown["state"], shown["stop_reason"], shown["spend"]["usd"]) == ("succeeded", "target", 0)


# Copies


def store(tmp_path: Path, job: str) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "storage"), "default", job)


def saved(tmp_path: Path, warm_start: WarmStartTrial) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "state").write_text(warm_start.trial)
    kept = warm_start.checkpoint
    store(tmp_path, warm_start.job).publish(warm_start.trial, kept.attempt, kept.step, folder)


def test_copied_checkpoint_stays_when_the_earlier_job_prunes_its_own(
    service: FakeService, client: TestClient, source: str, tmp_path: Path
) -> None:
    job = warm(client, source)
    spec, inherited = row_of(service, job).spec, matching_warm_starts(service, job)[:2]
    saved(tmp_path, inherited[0])  # the other trial's checkpoint is gone
    copier = Copier(str(tmp_path / "storage"), "default", job)
    for _ in range(2):  # once for the first driver, once for the driver that replaces it after its death
        made = warm_starts_of(spec, sampler_for(spec), inherited, begun=0, copier=copier).by_number
        assert list(made) == [0]
        kept = made[0].checkpoint
        assert (kept.trial, kept.attempt, kept.step) == ("trial_00000", 0, inherited[0].checkpoint.step)
    theirs = inherited[0].checkpoint
    store(tmp_path, source).prune(inherited[0].trial, theirs.attempt + 1, newest=0, keep=1)
    assert store(tmp_path, source).ids(inherited[0].trial) == []
    files = store(tmp_path, job).fetch("trial_00000", CheckpointId(kept.step, 0), tmp_path / "read")
    assert (files / "state").read_text() == inherited[0].trial


def test_grid_trials_are_continued_at_their_own_numbers(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    grid = {
        "algorithm": {"scheduler": "none", "sampler": "grid", "seed": 3},
        "search_space": {"width": {"type": "categorical", "choices": [8, 16, 32]}},
    }
    first = fakes.submit(client, **grid)
    with service.database.write() as db:
        jobs.note_code(db, first, CODE)
    fakes.simulate(service, first)
    job = warm(client, first, **grid)
    spec, inherited = row_of(service, job).spec, matching_warm_starts(service, job)
    assert inherited
    for warm_start in inherited:
        saved(tmp_path, warm_start)
    copier = Copier(str(tmp_path / "storage"), "default", job)
    made = warm_starts_of(spec, sampler_for(spec), inherited, begun=0, copier=copier).by_number
    assert len(made) == len(inherited)
    for number, warm_start in made.items():
        assert sampler_for(spec).suggest(number) == warm_start.config
    later = warm_starts_of(spec, sampler_for(spec), inherited, begun=max(made), copier=copier).by_number
    assert list(later) == [max(made)]


# Allowed and refused requests


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"constants": {"data_dir": "elsewhere"}}, "constants"),
        (
            {"fidelity": {"unit": "batch", "min": 1, "max": 9}},
            "one epoch, but a step of this job is one batch",
        ),
    ],
)
def test_checkpoints_with_other_constants_or_fidelity_are_refused(
    client: TestClient, source: str, changes: dict[str, Any], words: str
) -> None:
    sent = body(warm_start={"jobs": [source], "checkpoints": True}, **changes)
    (error,) = client.post("/v1/jobs", json=sent).json()["errors"]
    assert error["pointer"] == "/warm_start/jobs/0"
    assert words in error["detail"]
    assert client.post("/v1/jobs", json={**sent, "warm_start": {"jobs": [source]}}).status_code == 201


@pytest.mark.parametrize(("code", "words"), [("other", "has changed since"), (None, "is not known")])
def test_checkpoints_of_changed_or_unknown_code_are_refused(
    service: FakeService, client: TestClient, code: str | None, words: str
) -> None:
    job = fakes.submit(client, budget={"usd": 0.0002})
    with service.database.write() as db:
        jobs.note_code(db, job, code)
    fakes.simulate(service, job)
    sent = body(warm_start={"jobs": [job], "checkpoints": True})
    (error,) = client.post("/v1/jobs", json=sent).json()["errors"]
    assert words in error["detail"]


def test_code_that_changed_during_a_job_is_recorded_as_unknown(service: FakeService, source: str) -> None:
    with service.database.write() as db:
        jobs.note_code(db, source, CODE)
        assert jobs.get(db, source).code == CODE
        jobs.note_code(db, source, "other")
        assert jobs.get(db, source).code is None
        jobs.note_code(db, source, "other")
        assert jobs.get(db, source).code is None


def test_checkpoints_without_a_source_job_are_refused(client: TestClient) -> None:
    (error,) = client.post("/v1/jobs", json=body(warm_start={"checkpoints": True})).json()["errors"]
    assert error["pointer"] == "/warm_start/jobs"
