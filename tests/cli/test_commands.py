"""The JSON output of every command over the real app equals the REST response."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from sqlalchemy import update
from starlette.testclient import TestClient
from typer.main import get_command
from typer.testing import Result

from tests import fakes
from tests.api.test_advice import use
from tests.cli.conftest import Tuner
from tests.fakes import FakeService
from tuner.cli.escape import plural, usd
from tuner.cli.main import app
from tuner.client import Client, Job
from tuner.database.tables import trials
from tuner.domain.time import NS
from tuner.domain.usage import Usage
from tuner.simulator.worker import Overheads
from tuner.store import jobs


def printed(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


def get(rest: TestClient, path: str, **query: Any) -> Any:
    answer = rest.get(path, params=query)
    assert answer.status_code == 200
    return answer.json()


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(fakes.body()))
    return file


# Commands that only read


ASKING: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "whoami": (["whoami"], "/v1/whoami", {}),
    "jobs": (["jobs"], "/v1/jobs", {"limit": 100}),
    "jobs by tag": (["jobs", "--tag", "owner:done"], "/v1/jobs", {"tag": "owner:done"}),
    "jobs by state": (["jobs", "--state", "failed"], "/v1/jobs", {"state": "failed"}),
    "job": (["job", "JOB"], "/v1/jobs/JOB", {}),
    "best": (["best", "JOB"], "/v1/jobs/JOB/best", {}),
    "best under a budget": (
        ["best", "JOB", "--max-cost-usd", "0.0001", "--max-gpu-hours", "1", "--max-duration", "15m"],
        "/v1/jobs/JOB/best",
        {"max_cost_usd": 0.0001},
    ),
    "pareto": (["pareto", "JOB"], "/v1/jobs/JOB/pareto", {}),
    "best elsewhere": (
        ["best", "JOB", "--market", "spot", "--instance-type", "g4dn.xlarge", "--region", "us-east-1"],
        "/v1/jobs/JOB/best",
        {"market": "spot", "instance_type": "g4dn.xlarge", "region": "us-east-1"},
    ),
    "best of all": (
        ["best-of-all", fakes.ENTRY, "acc", "--max-cost-usd", "0.0001"],
        "/v1/best",
        {"trainable": fakes.ENTRY, "metric": "acc", "max_cost_usd": 0.0001},
    ),
    "pareto elsewhere": (
        ["pareto", "JOB", "--instance-type", "g4dn.xlarge"],
        "/v1/jobs/JOB/pareto",
        {"instance_type": "g4dn.xlarge"},
    ),
    "trials": (["trials", "JOB"], "/v1/jobs/JOB/trials", {"limit": 500}),
    "trials by metric": (
        ["trials", "JOB", "--sort", "-metric"],
        "/v1/jobs/JOB/trials",
        {"limit": 500, "sort": "-metric"},
    ),
    "trial": (["trial", "JOB", "trial_00000"], "/v1/jobs/JOB/trials/trial_00000", {}),
    "artifacts": (["artifacts", "JOB", "trial_00000"], "/v1/jobs/JOB/trials/trial_00000/artifacts", {}),
    "spend": (["spend"], "/v1/spend", {}),
    "audit": (["audit"], "/v1/audit", {}),
    "audit of somebody": (
        ["audit", "--action", "job.submit", "--user", "operator", "--since", "2001-01-01"],
        "/v1/audit",
        {"action": "job.submit", "user": "operator"},
    ),
    "spend by owner and day": (
        ["spend", "--by", "owner", "--by", "day", "--since", "2001-01-01", "--timezone", "Asia/Tokyo"],
        "/v1/spend",
        {"group_by": ["owner", "day"], "since": "2001-01-01", "timezone": "Asia/Tokyo"},
    ),
    "bill": (["bill", "JOB"], "/v1/jobs/JOB/bill", {}),
    "report": (["report", "JOB"], "/v1/jobs/JOB/report", {}),
    "advice": (["advice", "JOB"], "/v1/jobs/JOB/advice", {}),
    "replay": (["replay", "JOB"], "/v1/jobs/JOB/replay", {}),
    "replay with another policy": (
        ["replay", "JOB", "--with", "scheduler=none", "--with", "sampler=random"],
        "/v1/jobs/JOB/replay",
        {"scheduler": "none", "sampler": "random"},
    ),
    "curves": (["curves", "JOB"], "/v1/jobs/JOB/curves", {}),
    "curves of a metric": (["curves", "JOB", "--metric", "acc"], "/v1/jobs/JOB/curves", {"metric": "acc"}),
    "ledger": (["ledger", "JOB"], "/v1/jobs/JOB/ledger", {}),
    "trainables": (["trainables"], "/v1/trainables", {}),
    "a trainable": (["trainables", fakes.ENTRY], f"/v1/trainables/{fakes.ENTRY}", {}),
}


# Commands whose JSON comes from a call that changes or computes something, from a stream, or from no call. Each has its own test.
OTHERS = {
    *(
        "submit",
        "pilot",
        "plan",
        "estimate",
        "prices",
        "logs",
        "watch",
        "train",
        "export",
        "simulate",
        "cluster",
        "migrate",
        "doctor",
        "backup",
        "restore",
    ),
    *("pause", "resume", "cancel", "topup", "priority", "width", "enqueue", "promote", "stop"),
}


def test_every_command_with_json_output_is_tested() -> None:
    group = get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    printing = {
        name for name, command in group.commands.items() if any("--json" in p.opts for p in command.params)
    }
    assert printing == OTHERS | {words[0] for words, *_ in ASKING.values()}


@pytest.mark.parametrize("name", ASKING)
def test_json_output_equals_the_rest_response_and_default_output_is_text(
    tuner: Tuner, rest: TestClient, done: str, name: str
) -> None:
    words, path, query = ASKING[name]
    words = [word.replace("JOB", done) for word in words]
    assert printed(tuner(*words, "--json")) == get(rest, path.replace("JOB", done), **query)
    result = tuner(*words)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()
    assert not result.stdout.lstrip().startswith("{")


def test_tables_show_whole_ids_and_as_many_trials_as_the_limit_says(tuner: Tuner, done: str) -> None:
    assert done in tuner("jobs").stdout
    assert done in tuner("job", done).stdout
    assert "trial_00000" in tuner("trials", done).stdout
    assert len(printed(tuner("trials", done, "--limit", "2", "--json"))["items"]) == 2


def test_job_shows_how_many_trials_share_a_worker(tuner: Tuner, rest: TestClient) -> None:
    packed, plain = fakes.submit(rest, resources={"pack": 4}), fakes.submit(rest)
    assert "8 trials, up to 4 on each worker" in tuner("job", packed).stdout
    assert "worker" not in tuner("job", plain).stdout


def test_job_limited_in_gpu_hours_only_shows_all_digits_and_no_dollar_limit(
    tuner: Tuner, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Client.job
    limits = {"usd": None, "gpu_hours": 1234567.25, "wall_clock": None, "trials": None}
    monkeypatch.setattr(
        Client, "job", lambda client, job: ask(client, job).model_copy(update={"budget": limits})
    )
    shown = tuner("job", waiting).stdout
    assert "of -" not in shown
    assert "0 of 1234567.25" in shown


def test_budgets_are_set_listed_shown_and_removed(tuner: Tuner, rest: TestClient) -> None:
    words = ["--usd", "100", "--match", "project:none", "--period", "month", "--timezone", "Asia/Tokyo"]
    made = printed(
        tuner("budgets", "set", "vision", *words, "--alert", "0.8=https://a.example/?x=1", "--json")
    )
    assert made["webhook_secret"]
    assert made["alerts"] == [{"at": 0.8, "url": "https://a.example/?x=1"}]
    assert printed(tuner("budgets", "show", "vision", "--json")) == get(rest, "/v1/budgets/vision")
    assert printed(tuner("budgets", "list", "--json")) == get(rest, "/v1/budgets")
    for shown in (tuner("budgets", "list").stdout, tuner("budgets", "show", "vision").stdout):
        assert "vision" in shown
        assert "$100.00" in shown
    assert "whsec_" in tuner("budgets", "set", "vision", *words, "--new-secret").stdout
    assert tuner("budgets", "remove", "vision").exit_code == 0
    refused = tuner("budgets", "remove", "vision")
    assert refused.exit_code == 1
    assert "vision" in refused.stderr
    for wrong in (["--match", "project"], ["--alert", "80%=https://a.example"]):
        assert tuner("budgets", "set", "vision", "--usd", "1", *wrong).exit_code == 2


def test_quota_is_set_and_shown(tuner: Tuner, rest: TestClient) -> None:
    words = ["--usd", "500", "--period", "month", "--concurrent-jobs", "123456", "--concurrent-trials", "16"]
    words += ["--gpu-hours", "1234567.25"]
    made = printed(tuner("quota", "set", *words, "--json"))
    assert made == printed(tuner("quota", "show", "--json")) == get(rest, "/v1/quota")
    assert (made["usd"], made["concurrent_jobs"], made["concurrent_trials"]) == (500, 123456, 16)
    for limit in ("$500.00", "1234567.25", "123456"):
        assert f" {limit}" in tuner("quota", "show").stdout
    assert tuner("quota", "set", "--concurrent-jobs", "0").exit_code == 1
    assert printed(tuner("quota", "set", "--json"))["usd"] is None


def test_spend_is_printed_as_csv(tuner: Tuner, rest: TestClient, done: str) -> None:
    table = tuner("spend", "--by", "owner", "--csv").stdout
    query = {"group_by": "owner"}
    answer = rest.get("/v1/spend", params=query, headers={"Accept": "text/csv"})
    assert table.splitlines() == answer.text.splitlines()
    assert "done," in table
    assert tuner("spend", "--by", "owner", "--format", "csv").stdout == table


def test_report_shows_best_trial_and_estimates(tuner: Tuner, rest: TestClient, done: str) -> None:
    shown, report = tuner("report", done).stdout, get(rest, f"/v1/jobs/{done}/report")
    for word in (report["best"]["trial"], "random search", "ASHA that only stops", "estimated", "•"):
        assert word in shown
    assert all(estimate["note"].split(".")[0] in " ".join(shown.split()) for estimate in report["estimates"])


def test_advice_shows_findings_and_what_was_not_measured(
    tuner: Tuner, rest: TestClient, service: FakeService, done: str
) -> None:
    use(service, done, Usage(data_wait_ns=10 * NS, compute_ns=10 * NS, facts={"loader_workers": 0}))
    shown, advice = " ".join(tuner("advice", done).stdout.split()), get(rest, f"/v1/jobs/{done}/advice")
    assert advice["findings"]
    for finding in advice["findings"]:
        assert finding["title"] in shown
        assert finding["verify"] in shown
    assert all(gap["what"] in shown for gap in advice["not_measured"])


def test_replay_shows_the_first_difference_and_exits_with_1(
    tuner: Tuner, service: FakeService, rest: TestClient
) -> None:
    job = fakes.submit(rest, budget={"usd": 0.001})
    fakes.simulate(service, job)
    honest = tuner("replay", job)
    assert honest.exit_code == 0
    assert "no difference: replaying the events gives the recorded decisions" in honest.stdout
    other = tuner("replay", job, "--with", "sampler=grid")
    assert other.exit_code == 0
    assert "first difference" in other.stdout
    assert "asha and grid" in other.stdout
    same = tuner("replay", job, "--with", "sampler=random")
    assert "no difference: the other policy (asha and random) decides the same" in same.stdout
    with service.database.write() as db:
        db.execute(update(trials).where(trials.c.job == job, trials.c.number == 0).values(state="failed"))
    changed = tuner("replay", job)
    assert changed.exit_code == 1
    assert "trial_00000 is failed" in changed.stdout


def test_replay_refuses_unknown_policies(tuner: Tuner, done: str) -> None:
    misspelt = tuner("replay", done, "--with", "schedulr=asha")
    assert misspelt.exit_code == 2
    assert "'scheduler'" in misspelt.stderr
    unknown = tuner("replay", done, "--with", "scheduler=hyperbandd")
    assert unknown.exit_code == 1
    assert "is not one of auto, asha, asha_stopping, none" in unknown.stderr


def test_report_of_a_waiting_job_says_that_nothing_was_reported(tuner: Tuner, waiting: str) -> None:
    assert "no trial has reported acc yet" in tuner("report", waiting).stdout


# Commands that change something


def test_job_is_submitted_from_a_file(tuner: Tuner, rest: TestClient, job_file: Path) -> None:
    submitted = printed(tuner("submit", str(job_file), "--json"))
    assert submitted == get(rest, f"/v1/jobs/{submitted['id']}")
    shown = tuner("submit", str(job_file))
    assert shown.exit_code == 0
    assert "queued" in shown.stdout


def test_job_is_submitted_from_standard_input(tuner: Tuner, job_file: Path) -> None:
    assert printed(tuner("submit", "-", "--json", typed=job_file.read_text()))["state"] == "queued"


def test_second_submission_with_the_same_key_shows_the_first_job(tuner: Tuner, job_file: Path) -> None:
    words = ["submit", str(job_file), "--json"]
    first, again = (printed(tuner(*words, "--idempotency-key", "mine")) for _ in range(2))
    assert first["id"] == again["id"] != printed(tuner(*words))["id"]


@pytest.mark.parametrize(("state", "status"), [("succeeded", 0), ("cancelled", 1)])
def test_submit_with_wait_exits_with_the_status_of_the_job(
    tuner: Tuner,
    service: FakeService,
    monkeypatch: pytest.MonkeyPatch,
    job_file: Path,
    state: str,
    status: int,
) -> None:
    def end(_: float) -> None:
        job = next(iter(get(fakes.client_of(service), "/v1/jobs", state="queued")["items"]))["id"]
        fakes.begin(service, job)
        fakes.move(service, job, state)

    service.now.pass_s(1)
    monkeypatch.setattr("time.sleep", end)
    result = tuner("submit", str(job_file), "--wait", "--json")
    assert result.exit_code == status
    assert json.loads(result.stdout)["state"] == state
    assert result.stderr.splitlines()[0] == f"submitted {json.loads(result.stdout)['id']}"


@pytest.mark.parametrize("command", ["submit", "pilot"])
def test_detail_of_an_ended_job_does_not_control_the_terminal(
    tuner: Tuner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    def wait(client: Client, job: str, **_: object) -> Job:
        return client.job(job).model_copy(update={"detail": "lost\x1b]0;title\x07", "state": "failed"})

    monkeypatch.setattr(Client, "wait", wait)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(fakes.body(planning={"pilot": {"usd": 0.0005}})))
    result = tuner(command, str(file), "--wait", "--json")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "lost]0;title"


@pytest.mark.parametrize(
    ("actions", "state"),
    [(["pause"], "paused"), (["cancel"], "cancelled"), (["pause", "resume"], "queued")],
)
def test_job_is_paused_cancelled_and_resumed(
    tuner: Tuner, rest: TestClient, waiting: str, actions: list[str], state: str
) -> None:
    *before, action = actions
    for earlier in before:
        tuner(earlier, waiting)
    job = printed(tuner(action, waiting, "--json"))
    assert job == get(rest, f"/v1/jobs/{waiting}")
    assert job["state"] == state
    assert state in tuner(action, waiting).stdout


def test_cancel_of_a_running_job_says_that_it_takes_effect_soon(
    tuner: Tuner, service: FakeService, waiting: str
) -> None:
    fakes.begin(service, waiting)
    assert "The job was asked to stop; it is cancelled within seconds." in tuner("cancel", waiting).stdout


def test_trials_of_a_job_are_steered(tuner: Tuner, rest: TestClient, service: FakeService) -> None:
    job = fakes.submit(rest, algorithm={"scheduler": "asha", "sampler": "random"})
    fakes.simulate(service, job, messages=60)
    assert printed(tuner("width", job, "1", "--json"))["concurrency"] == 1
    assert printed(tuner("enqueue", job, "--config", '{"lr": 0.3, "width": 9}', "--json"))["id"] == job
    trials = get(rest, f"/v1/jobs/{job}/trials")["items"]
    paused = next(trial["id"] for trial in trials if trial["state"] == "paused")
    for action in ("promote", "stop"):
        assert printed(tuner(action, job, paused, "--json"))["id"] == paused
    with service.database.read() as db:
        assert [request.request for request in jobs.trial_requests_of(db, job)] == [1, 2, 3]
    again = tuner("enqueue", job, "--config", '{"lr": 0.3, "width": 9}').stdout
    assert again == f"{job} tries this configuration as soon as a worker is free: lr=0.3  width=9\n"
    for wrong in (["stop", job], ["enqueue", job, "--config", "[1]"], ["enqueue", job]):
        assert tuner(*wrong).exit_code == 2


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("paused", "continues to its next rung once the job runs and a worker is free."),
        ("running", "continues past its next rung without a pause."),
    ],
)
def test_promote_confirms_in_one_line(
    tuner: Tuner, rest: TestClient, service: FakeService, state: str, shown: str
) -> None:
    job = fakes.submit(rest, algorithm={"scheduler": "asha", "sampler": "random"})
    fakes.simulate(service, job, messages=60)
    trials = get(rest, f"/v1/jobs/{job}/trials")["items"]
    trial = next(trial["id"] for trial in trials if trial["state"] == state)
    assert tuner("promote", job, trial).stdout == f"{trial} {shown}\n"


def test_promote_in_a_paused_job_says_that_the_job_must_run(
    tuner: Tuner, rest: TestClient, service: FakeService
) -> None:
    by_asha = {"scheduler": "asha", "sampler": "random"}
    job = fakes.submit(rest, algorithm=by_asha, budget={"usd": 0.001, "on_exhausted": "pause"})
    fakes.simulate(service, job)
    assert get(rest, f"/v1/jobs/{job}")["state"] == "paused"
    trials = get(rest, f"/v1/jobs/{job}/trials")["items"]
    trial = next(trial["id"] for trial in trials if trial["state"] == "paused")
    assert "once the job runs" in tuner("promote", job, trial).stdout


def test_top_up_raises_the_budget_and_leaves_a_waiting_job_queued(
    tuner: Tuner, rest: TestClient, waiting: str
) -> None:
    topped_up = printed(tuner("topup", waiting, "--usd", "10", "--json"))
    assert topped_up == get(rest, f"/v1/jobs/{waiting}")
    assert (topped_up["budget"]["usd"], topped_up["state"]) == (10.001, "queued")
    assert "$20.00" in tuner("topup", waiting, "--usd", "10").stdout


def test_top_up_resumes_a_job_that_had_spent_its_budget(
    tuner: Tuner, rest: TestClient, service: FakeService
) -> None:
    job = fakes.submit(rest, budget={"usd": 0.001})
    fakes.simulate(service, job)
    topped_up = printed(tuner("topup", job, "--usd", "0.001", "--json"))
    assert (topped_up["state"], topped_up["budget"]["usd"]) == ("running", 0.002)


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (
            {"budget": {"usd": 1, "trials": 2}},
            "The job ended with `trials`: raise `budget.trials` with PATCH /v1/jobs/JOB, and `tuner resume JOB` continues it.",
        ),
        (
            {"budget": {"usd": 1, "wall_clock": "20s"}},
            "The job ended with `wall_clock`: raise `budget.wall_clock` with PATCH /v1/jobs/JOB, and `tuner resume JOB` continues it.",
        ),
        (
            {
                "search_space": {
                    "lr": {"type": "categorical", "choices": [0.1]},
                    "width": {"type": "int", "low": 8, "high": 9},
                },
                "budget": {"usd": 1},
            },
            "The job ended with `space_exhausted`, so more money does not continue it.",
        ),
        (
            {"objective": {"metric": "acc", "mode": "max", "target": 0.001}},
            "The job ended with `target` and was not resumed: `tuner resume JOB` continues it.",
        ),
        (
            {
                "confirm": {"candidates": 3, "seeds": 3},
                "budget": {"usd": 0.004},
                "algorithm": {"sampler": "random"},
            },
            "The job ended with `confirmed` and was not resumed: `tuner resume JOB` continues it.",
        ),
    ],
    ids=["trials", "wall_clock", "space_exhausted", "target", "confirmed"],
)
def test_top_up_says_how_to_continue_a_job_that_ended_for_another_reason(
    tuner: Tuner, rest: TestClient, service: FakeService, limit: dict[str, Any], shown: str
) -> None:
    job = fakes.submit(rest, **limit)
    fakes.simulate(service, job)
    shown_text = " ".join(tuner("topup", job, "--usd", "1").stdout.split())
    assert shown_text.endswith(shown.replace("JOB", job))
    assert printed(tuner("topup", job, "--usd", "1", "--json"))["state"] == "succeeded"


def test_top_up_that_cannot_pay_for_the_start_of_the_workers_shows_a_warning(
    tuner: Tuner, rest: TestClient, service: FakeService
) -> None:
    job = fakes.submit(rest, budget={"usd": 0.001})
    fakes.simulate(service, job, overheads=Overheads(warming_ns=10 * 10**9))
    spent = get(rest, f"/v1/jobs/{job}")["spend"]["usd"]
    rest.patch(f"/v1/jobs/{job}", json={"budget": {"usd": spent}})
    topped_up = printed(tuner("topup", job, "--usd", "0.00004", "--json"))
    (warning,) = topped_up["warnings"]
    assert "the budget has $0.00004 left, but starting a worker" in warning
    assert topped_up["state"] == "running"
    shown = tuner("resume", job).stdout
    assert f"! {warning}" in " ".join(shown.split())
    shown = tuner("topup", job, "--usd", "0.000001").stdout
    assert "! the budget has $0.000041 left" in shown
    assert "!" not in tuner("topup", job, "--usd", "1").stdout


def test_top_up_does_not_resume_a_job_paused_by_a_user(tuner: Tuner, waiting: str) -> None:
    tuner("pause", waiting)
    assert printed(tuner("topup", waiting, "--usd", "1", "--json"))["state"] == "paused"


@pytest.mark.parametrize("value", [7, -5])
def test_priority_of_a_waiting_job_is_changed(
    tuner: Tuner, rest: TestClient, waiting: str, value: int
) -> None:
    job_view = printed(tuner("priority", waiting, str(value), "--json"))
    assert job_view == get(rest, f"/v1/jobs/{waiting}")
    assert job_view["priority"] == value
    assert f"place {job_view['queue_position']}" in tuner("priority", waiting, str(value)).stdout


def test_bill_lists_kinds_and_the_most_expensive_trials_or_all_with_an_option(
    tuner: Tuner, done: str, rest: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bill = get(rest, f"/v1/jobs/{done}/bill")
    trials = sorted(bill["trials"], key=lambda trial: -trial["total_usd"])
    assert len(trials) > 3
    monkeypatch.setattr("tuner.cli.main.SHOWN", 2)
    shown = tuner("bill", done).stdout
    assert all(kind in shown for kind in bill["by_kind"])
    assert [trial["trial"] for trial in trials if trial["trial"] in shown] == [
        trial["trial"] for trial in trials[:2]
    ]
    sum_usd = usd(sum(trial["total_usd"] for trial in trials[2:]))
    assert f"and {plural(len(trials) - 2, 'cheaper trial')}, {sum_usd} together" in shown
    everything = tuner("bill", done, "--all").stdout
    assert all(trial["trial"] in everything for trial in trials)
