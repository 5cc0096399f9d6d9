"""Plots of jobs show the REST data, and names chosen by users are not read as markup or formulas."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests import fakes
from tests.client.both import Both
from tests.fakes import FakeService
from tuner.schemas.answers import Bill

PNG = b"\x89PNG\r\n\x1a\n"
# Both clients draw with the same functions, so that one test with both is enough.
one_client = pytest.mark.parametrize("client", ["answers"], indirect=True)


def test_plot_without_arguments_draws_four_charts(client: Both, done: str) -> None:
    from matplotlib.figure import Figure  # takes half a second

    picture = client.job(done).plot()
    assert isinstance(picture, Figure)
    titles = [axes.get_title() for axes in picture.axes]
    assert [title.split(":")[0] for title in titles] == [
        "Learning curves",
        "Best against dollars",
        "Pareto front",
        "Bill",
    ]
    assert picture._repr_png_().startswith(PNG)


@one_client
def test_plots_do_not_register_with_pyplot(client: Both, done: str) -> None:
    from matplotlib import pyplot

    client.job(done).plot("bill")
    assert pyplot.get_fignums() == []


@one_client
def test_learning_curve_plot_shows_all_trials_rungs_and_promotions(client: Both, done: str) -> None:
    job = client.job(done)
    (axes,) = job.plot("curves").axes
    curves = job.curves()
    rungs = {line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"}
    assert rungs == set(job.rungs)
    leaders = [line for line in axes.lines if str(line.get_label()).startswith("trial_")]
    (others,) = [collection for collection in axes.collections if collection.get_label().startswith("_")]
    assert len(leaders) + len(others.get_segments()) == len([trial for trial in curves.trials if trial.steps])
    best = max(trial.best_metric for trial in curves.trials if trial.best_metric is not None)
    assert max(leaders[0].get_ydata()) == best
    (promoted,) = [collection for collection in axes.collections if collection.get_label() == "promoted"]
    assert len(promoted.get_offsets()) == sum(len(trial.promotions_at) for trial in curves.trials)


@one_client
def test_best_plot_shows_the_best_curve_of_the_report(client: Both, done: str) -> None:
    job = client.job(done)
    (axes,) = job.plot("best").axes
    (line,) = [drawn_line for drawn_line in axes.lines if drawn_line.get_label() == "best so far"]
    drawn = list(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert drawn[:-1] == [(point.spent_usd, point.value) for point in job.report().best_curve]
    (budget,) = [drawn_line for drawn_line in axes.lines if drawn_line.get_label() == "budget"]
    assert budget.get_xdata()[0] == job.budget["usd"]


@one_client
def test_best_plot_of_a_running_job_does_not_run_backward(client: Both, done: str) -> None:
    """The points include the part of running leases that is not posted. The spend of the job does not."""
    from tuner.client.plots import PlotData, draw

    job = client.job(done)
    report = job.report()
    unposted = report.model_copy(update={"spent_usd": report.best_curve[-1].spent_usd / 2})
    (axes,) = draw(PlotData(job=job, report=unposted), ["best"]).axes
    (line,) = [drawn_line for drawn_line in axes.lines if drawn_line.get_label() == "best so far"]
    spent = list(line.get_xdata())
    assert spent == sorted(spent)


@one_client
def test_plots_show_the_best_trial_that_satisfies_the_constraints(
    client: Both, service: FakeService, rest: TestClient
) -> None:
    limit = {"metric": "acc", "max": 0.02}
    name = fakes.submit(rest, constraints=[limit], budget={"usd": 0.002})
    fakes.simulate(service, name)
    job = client.job(name)
    best, trials = job.best_so_far, job.curves().trials
    assert best is not None
    assert max(max(trial.metric) for trial in trials if trial.metric) > limit["max"]
    curves, shown = job.plot("curves").axes[0], job.plot("best").axes[0]
    leaders = [line.get_label() for line in curves.lines if str(line.get_label()).startswith("trial_")]
    ranked = sorted((t for t in trials if t.best_metric is not None), key=lambda t: -t.best_metric)
    assert leaders[: len(ranked)] == [trial.id for trial in ranked[:5]]
    assert leaders[0] == best.trial
    (line,) = [drawn for drawn in shown.lines if drawn.get_label() == "best so far"]
    assert max(line.get_ydata()) == best.metric


@one_client
def test_curve_of_the_best_trial_comes_first(client: Both, done: str) -> None:
    job = client.job(done)
    # With proxies, the best trial may have a lower metric than a trial in an earlier stage.
    other = next(trial for trial in reversed(job.curves().trials) if trial.steps)
    acting: Any = getattr(job, "_inner", job)
    acting.best_so_far = acting.best_so_far.model_copy(update={"trial": other.id})
    (axes,) = job.plot("curves").axes
    leaders = [line.get_label() for line in axes.lines if str(line.get_label()).startswith("trial_")]
    assert leaders[0] == other.id


@one_client
def test_pareto_and_bill_plots_match_the_rest_answers(client: Both, done: str) -> None:
    job = client.job(done)
    (axes,) = job.plot("pareto").axes
    drawn = list(zip(axes.lines[0].get_xdata(), axes.lines[0].get_ydata(), strict=True))
    assert drawn == sorted((point.cost_usd, point.metric) for point in job.pareto().items)
    (axes,) = job.plot("bill").axes
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(job.bill().total_usd)


@one_client
def test_pareto_plot_of_two_objectives_draws_their_metrics(client: Both, done: str) -> None:
    from tuner.client.plots import PlotData, draw

    job = client.job(done)
    pareto = job.pareto().model_copy(update={"second_metric": job.objective["metric"]})
    axes, _ = draw(PlotData(job=job, pareto=pareto), ["pareto"]).axes
    (drawn,) = axes.collections
    assert [tuple(point) for point in drawn.get_offsets()] == [(p.metric, p.metric) for p in pareto.items]
    assert list(drawn.get_array()) == [point.cost_usd for point in pareto.items]


@one_client
def test_job_without_results_can_be_plotted(client: Both) -> None:
    assert client.submit(fakes.body()).plot()._repr_png_().startswith(PNG)


@one_client
def test_unknown_plot_name_is_refused_with_a_suggestion(client: Both, done: str) -> None:
    with pytest.raises(ValueError, match="did you mean 'curves'"):
        client.job(done).plot("curve")


@one_client
@pytest.mark.parametrize("name", ["$x$", "$\\frac{", "a_b^c", "costs $5 or $6"])
def test_names_are_not_drawn_as_math_formulas(client: Both, done: str, name: str) -> None:
    job = client.job(done)
    acting: Any = getattr(job, "_inner", job)
    acting.name, acting.objective = name, {"metric": name, "mode": "max"}
    assert job.plot("best")._repr_png_().startswith(PNG)


@given(st.lists(st.integers(0, 1000), max_size=30))
def test_bars_add_up_to_the_bill(costs: list[int]) -> None:
    from tuner.client import plots  # imports matplotlib

    trials = [
        {
            "trial": f"trial_{n}",
            "state": "completed",
            "steps": 1,
            "total_usd": cost,
            "gpu_hours": 0,
            "by_kind": {"train": cost},
        }
        for n, cost in enumerate(costs)
    ]
    empty = Bill.model_construct(trials=[plots.TrialBill.model_validate(trial) for trial in trials])
    names, kinds = plots.bars(empty)
    assert len(names) == len(kinds) <= plots.BARS + 1
    assert sum(bar.get("train", 0) for bar in kinds) == sum(costs)
