"""Job objects of both clients over the real app: their fields, methods and display."""

import sys
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.client.both import Both
from tests.fakes import FakeService
from tuner.client import ApiError
from tuner.client.follow import progress_of
from tuner.simulator.worker import Overheads


def test_job_has_the_fields_of_the_rest_response(client: Both, rest: TestClient, done: str) -> None:
    job = client.job(done)
    answer = rest.get(f"/v1/jobs/{done}").json()
    assert job.model_dump() == answer
    assert job.best_so_far.metric == answer["best"]["metric"]
    assert [listed_job.id for listed_job in client.jobs()] == [
        item["id"] for item in rest.get("/v1/jobs").json()["items"]
    ]


def test_job_methods_return_what_the_client_methods_return(client: Both, done: str) -> None:
    job = client.job(done)
    assert job.best(max_cost_usd=1.0) == client.best(done, max_cost_usd=1.0)
    assert job.bill() == client.bill(done)
    assert job.pareto() == client.pareto(done)
    assert job.advice() == client.advice(job)
    assert job.replay() == client.replay(job)
    assert job.replay(sampler="grid") == client.replay(done, sampler="grid") != job.replay()
    assert list(job.trials(limit=3)) == list(client.trials(job, limit=3))
    first = next(iter(job.trials()))
    trial = job.trial(first.id)
    assert trial == client.trial(done, first.id)
    assert trial.artifacts() == job.artifacts(first.id)
    assert job.report().best_curve
    assert next(iter(job.events())).type == "report" or list(job.events(after=10**6))


def test_actions_update_the_job_object(client: Both) -> None:
    job = client.submit(fakes.body())
    same = client.job(job.id)
    assert (job.state, same.state) == ("queued", "queued")
    assert job.cancel() == job
    assert (job.state, same.state) == ("cancelled", "queued")
    assert same.refresh().state == same.state == "cancelled"
    assert job.wait(progress=False).state == "cancelled"


def test_wait_on_a_queued_job_times_out(client: Both) -> None:
    with pytest.raises(TimeoutError, match="still queued"):
        client.submit(fakes.body()).wait(timeout_s=0)


def test_wait_continues_after_a_refused_connection_at_its_first_poll(
    client: Both, rest: TestClient, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry, refusals = rest._transport.handle_request, [httpx2.ConnectError("refused")]

    def refuse_once(request: httpx2.Request) -> httpx2.Response:
        if refusals:
            raise refusals.pop()
        return carry(request)

    monkeypatch.setattr("tuner.client.follow.PAUSE_S", 0.0)
    monkeypatch.setattr(rest._transport, "handle_request", refuse_once)
    assert client.wait(done).state == "succeeded"
    assert refusals == []


def test_top_up_adds_to_the_current_budget(client: Both, rest: TestClient) -> None:
    job = client.submit(fakes.body(budget={"usd": 1}))
    rest.patch(f"/v1/jobs/{job.id}", json={"budget": {"usd": 2}})
    assert job.top_up(usd=0.3).budget["usd"] == job.budget["usd"] == 2.3
    with pytest.raises(ValueError, match="does not limit gpu_hours"):
        job.top_up(gpu_hours=1)
    with pytest.raises(ValueError, match="give the amount to add"):
        job.top_up()


def test_top_up_with_a_text_is_refused_by_name(client: Both) -> None:
    job = client.submit(fakes.body(budget={"usd": 1}))
    with pytest.raises(TypeError, match="the amount of usd to add must be a number, not '1'"):
        job.top_up(usd="1")


@pytest.mark.parametrize("usd", [-0.3, 0, 4e-7, float("nan"), float("inf")])
def test_top_up_that_is_no_amount_of_micro_dollars_is_refused(client: Both, usd: float) -> None:
    job = client.submit(fakes.body(budget={"usd": 1}))
    with pytest.raises(ValueError, match=r"at least 0\.000001"):
        job.top_up(usd=usd)
    assert job.refresh().budget["usd"] == 1


def test_job_with_spent_budget_resumes_after_top_up(
    client: Both, service: FakeService, rest: TestClient
) -> None:
    spent = fakes.submit(rest, budget={"usd": 0.0005})
    fakes.simulate(service, spent)
    job = client.job(spent)
    assert job.stop_reason == "budget_usd"
    assert job.top_up(usd=0.1).state in ("queued", "running")


def test_top_up_that_cannot_pay_for_the_start_of_the_workers_returns_a_warning(
    client: Both, service: FakeService, rest: TestClient
) -> None:
    spent = fakes.submit(rest, budget={"usd": 0.001})
    fakes.simulate(service, spent, overheads=Overheads(warming_ns=10 * 10**9))
    job = client.job(spent)
    client.patch(job, budget={"usd": job.spend.usd})
    assert job.warnings == []
    (warning,) = job.top_up(usd=0.00004).warnings
    assert "the budget has $0.00004 left, but starting a worker" in warning
    assert (job.state, job.warnings) == ("running", [warning])
    assert job.top_up(usd=1).warnings == job.warnings == []


def test_top_up_adds_once_if_its_response_is_lost(
    client: Both, rest: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the service made the change. Of two concurrent top-ups, the second is refused."""
    job = client.submit(fakes.body(budget={"usd": 1}))
    carry = rest._transport.handle_request
    lost: list[str] = []

    def break_once(request: httpx2.Request) -> httpx2.Response:
        answer = carry(request)
        if request.method == "PATCH" and not lost:
            lost.append(answer.headers["ETag"])
            raise httpx2.ReadError("the connection broke")
        return answer

    def be_overtaken(request: httpx2.Request) -> httpx2.Response:
        if request.method == "PATCH":
            monkeypatch.setattr(rest._transport, "handle_request", carry)
            rest.patch(f"/v1/jobs/{job.id}", json={"budget": {"usd": 9}})
        return carry(request)

    monkeypatch.setattr(rest._transport, "handle_request", break_once)
    assert job.top_up(usd=5).budget["usd"] == 6
    assert lost
    monkeypatch.setattr(rest._transport, "handle_request", be_overtaken)
    with pytest.raises(ApiError) as refused:
        job.top_up(usd=5)
    assert refused.value.status == 412
    assert job.refresh().budget["usd"] == 9


@pytest.mark.parametrize(
    ("wall_clock", "made"), [("90000ms", 90), ("90s", 90), (" 1.5m", 90), ("soon", None)]
)
def test_patch_whose_response_is_lost_reads_durations_as_the_service_does(
    client: Both, rest: TestClient, monkeypatch: pytest.MonkeyPatch, wall_clock: str, made: int | None
) -> None:
    job = client.submit(fakes.body(budget={"usd": 1}))
    carry = rest._transport.handle_request

    def lose(request: httpx2.Request) -> httpx2.Response:
        answer = carry(request)
        if request.method == "PATCH":
            raise httpx2.ReadError("the connection broke")
        return answer

    monkeypatch.setattr(rest._transport, "handle_request", lose)
    if made is None:
        with pytest.raises(ApiError) as refused:
            client.patch(job, if_match=job.revision, budget={"wall_clock": wall_clock})
        assert refused.value.in_doubt
    else:
        changed = client.patch(job, if_match=job.revision, budget={"wall_clock": wall_clock})
        assert changed.budget["wall_clock"] == made


# Display


def test_user_given_names_are_escaped_in_html(client: Both, done: str) -> None:
    job = client.job(done)
    acting = getattr(job, "_inner", job)
    acting.name, acting.objective = "<b>bold</b>", {"metric": "<script>"}
    shown = acting._repr_html_()
    assert "<b>" not in shown
    assert "<script>" not in shown
    assert "&lt;b&gt;bold&lt;/b&gt;: succeeded" in shown
    assert done in repr(acting)


def test_small_amounts_are_shown_without_an_exponent(client: Both, rest: TestClient) -> None:
    job = client.submit(fakes.body(budget={"usd": 1}))
    acting = getattr(job, "_inner", job)
    acting.budget = {**job.budget, "usd": 5e-05}
    acting.spend.usd = 0.000012
    assert "$0.000012 of $0.00005 spent" in repr(acting)


def test_wait_prints_progress_lines_only_on_request(
    client: Both, done: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client.job(done).wait(progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "best acc" in captured.err
    client.job(done).wait()
    assert capsys.readouterr().err == "", "nobody looks"


def test_wait_in_a_notebook_updates_one_progress_bar(
    client: Both, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from IPython import display as shown

    drawn: list[str] = []
    updated: list[str] = []

    class Handle:
        def update(self, what: Any) -> None:
            drawn.append(what.data)
            updated.append(what.data)

    def display(what: Any, **_: Any) -> Handle:
        drawn.append(what.data)
        return Handle()

    class Shell:
        kernel = object()

    monkeypatch.setattr(shown, "display", display)
    monkeypatch.setattr("IPython.get_ipython", Shell)
    job = client.job(done)
    job.wait()
    assert len(drawn) == 1
    show = progress_of(wanted=None)
    show(job)
    show(job)
    assert len(drawn) == 3
    assert updated == drawn[2:]
    assert drawn[0].startswith("<progress")


# Tables


def test_trials_dataframe_has_typed_columns(client: Both, done: str) -> None:
    table = client.job(done).trials_dataframe()
    trials = list(client.trials(done))
    assert list(table["trial"]) == [trial.id for trial in trials]
    assert list(table["paid_usd"]) == [trial.paid_usd for trial in trials]
    kinds = {name: str(kind) for name, kind in table.dtypes.items()}
    assert kinds["steps"] == kinds["config.width"] == kinds["attempts"] == "Int64"
    assert kinds["metric"] == kinds["config.lr"] == kinds["config.momentum"] == "Float64"
    assert kinds["config.optimizer"] == kinds["state"] == "string"
    assert kinds["created_at"] == "datetime64[us, UTC]"
    with_momentum = table["config.optimizer"] == "sgd"
    assert table.loc[with_momentum, "config.momentum"].notna().all()
    assert table.loc[~with_momentum, "config.momentum"].isna().all()
    assert table["config.momentum"].isna().any()


def test_job_without_trials_gives_an_empty_dataframe(client: Both) -> None:
    table = client.submit(fakes.body()).trials_dataframe()
    assert len(table) == 0
    assert str(table.dtypes["config.width"]) == "Int64"


def test_curves_dataframe_has_a_row_per_report(client: Both, done: str) -> None:
    job = client.job(done)
    table = job.curves_dataframe()
    assert [str(kind) for kind in table.dtypes] == ["string", "Int64", "Float64", "Float64", "Float64"]
    first = job.trial(str(table["trial"][0]))
    mine = table[table["trial"] == first.id]
    assert list(mine["step"]) == [point.step for point in first.curve]
    assert list(mine["metric"]) == [point.metric for point in first.curve]
    assert list(mine["cost_to_train_usd"]) == pytest.approx(
        [point.cost_to_train_usd for point in first.curve], rel=1e-3
    )
    assert len(table) == job.progress.steps
    assert len(client.submit(fakes.body()).curves_dataframe().columns) == 5


@pytest.mark.parametrize("call", [lambda job: job.trials_dataframe(), lambda job: job.plot("bill")])
def test_missing_package_error_names_the_pip_command(
    client: Both, done: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[Any], object]
) -> None:
    job = client.job(done)
    for module in [
        name
        for name in sys.modules
        if name.startswith(("matplotlib.", "tuner.client.frames", "tuner.client.plots"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    for module in ("pandas", "matplotlib"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'tuner\[notebook\]'"):
        call(job)
