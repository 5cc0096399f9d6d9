"""Test plans: equal inputs give equal plans, and all figures follow from the stated inputs and the evidence."""

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from tests.strategies import examples
from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind, slice_costs
from tuner.domain.job import (
    Algorithm,
    JobSpec,
    MarketPolicy,
    Resources,
    SamplerName,
    SchedulerName,
    StartPoint,
    TrialLimits,
)
from tuner.domain.money import Cost, Money, Price, Rate
from tuner.domain.objective import Fidelity, Mode, Objective
from tuner.domain.offer import Offer
from tuner.domain.records import AttemptRow
from tuner.domain.space import Categorical, Float, Int, Space
from tuner.domain.time import NS, Instant
from tuner.planning import planner
from tuner.planning.alternatives import MachineCandidate
from tuner.planning.choices import rank_correlation
from tuner.planning.pace_evidence import (
    Delays,
    KnownDelays,
    PaceEvidence,
    SeenTrial,
    of_given,
    of_nothing,
    of_trials,
)
from tuner.planning.paces import DrawnTraining, Paces, smoothed
from tuner.planning.plan import Alternative, JobPlan
from tuner.planning.simulations import (
    FORECAST_ERROR,
    KnowingSampler,
    Scenario,
    SimulatedOutcome,
    SpotLife,
)
from tuner.service.plan_evidence import delays_of
from tuner.service.plan_runs import simulate

SPACE = Space({"lr": Float(1e-4, 1, log=True), "width": Int(8, 64)})
PRICES: dict[MarketPolicy, Sequence[str]] = {
    "on_demand": ("1",),
    "spot": ("0.35",),
    "spot_with_fallback": ("1", "0.35"),
}


def seen(count: int = 12, *, steps: int = 9, mode: str = "max") -> PaceEvidence:
    """Build evidence in which wider models are better and slower."""
    rng, trials = Random(1), []
    for _ in range(count):
        config = SPACE.sample(rng)
        width = int(str(config["width"]))
        curve = tuple((step, width / 64 - 0.5 / step) for step in range(1, steps + 1))
        trials.append(SeenTrial(config, width * NS, curve, steps))
    return of_trials(trials, source="history", delays=Delays(), jobs=["job_1"])


def losses(*, diverged: float | None = None, times: float = 1.0, gain: float = 1.5) -> PaceEvidence:
    """Build evidence of trials with losses from 0.3 to 1.1. The loss of the first one is `diverged` times the step, if it is given."""
    rng, trials = Random(1), []
    for number in range(12):
        last = 0.3 + 0.8 * rng.random()
        curve = tuple((step, -times * (last + gain / step)) for step in (1, 2, 3, 6, 9))
        if number == 0 and diverged is not None:
            curve = tuple((step, -diverged * step) for step in (1, 2, 3, 6, 9))
        trials.append(SeenTrial(SPACE.sample(rng), 10 * NS, curve, 9))
    return of_trials(trials, source="history", delays=Delays(), jobs=["job_1"])


def question(
    *,
    usd: str = "3",
    trials: int | None = None,
    scheduler: SchedulerName = "asha",
    sampler: SamplerName = "random",
    market: MarketPolicy = "on_demand",
    evidence: PaceEvidence | None = None,
    fidelity: Fidelity | None = None,
    mode: Mode = "max",
    target: float | None = None,
    wall_clock_ns: int | None = None,
) -> planner.PlanQuestion:
    spec = JobSpec(
        "a",
        "m:f",
        Objective("auc", mode, target=target),
        SPACE,
        Budget(usd=Money.from_usd(usd), trials=trials, wall_clock_ns=wall_clock_ns),
        fidelity=fidelity or Fidelity("epoch", 1, 9, 3),
        algorithm=Algorithm(scheduler, sampler),
        resources=Resources(1, 1, market),
    )
    offers = tuple(
        Offer("gpu", Price.from_usd_per_hour(usd), 1, 1, "spot" if usd == "0.35" else "on_demand")
        for usd in PRICES[market]
    )
    known = evidence or of_given(60 * NS, known=KnownDelays())
    candidate = MachineCandidate("gpu", market, offers, 2)
    return planner.PlanQuestion(spec, known, (candidate,), 10 * NS, SpotLife(2 * 3600 * NS))


def made(**changes: object) -> JobPlan:
    return planner.plan(question(**changes), simulate)  # type: ignore[arg-type]


def forecasting(*, thrifty: bool = True, size: float = 1) -> KnowingSampler:
    training = DrawnTraining(Paces(seen(), 9), seed=0, factor=1, coarse=1)
    return KnowingSampler(SPACE, 0, training, last=9, thrifty=thrifty, size=size)


def forecasts_of(sampler: KnowingSampler, steps: Sequence[int]) -> list[tuple[float, float]]:
    """Report one step for each of the first trials, and return their forecasts in order."""
    for number, step in enumerate(steps):
        sampler.suggest(number)
        sampler.tell(number, step, 0.0, NS, at_rung=True)
    forecasts = sampler.forecast()
    assert forecasts is not None
    return [forecasts[number] for number in range(len(steps))]


def test_sampler_of_a_simulation_forecasts_final_scores_with_errors_until_trials_are_complete() -> None:
    sampler = forecasting()
    early, complete = forecasts_of(sampler, [1] * 9), forecasts_of(forecasting(), [9] * 9)
    errors = [guess - final for (guess, _), (final, _) in zip(early, complete, strict=True)]
    assert all(errors)
    assert max(map(abs, errors)) < 4 * FORECAST_ERROR
    sampler.tell(0, 3, 0.0, NS, at_rung=True)
    again = sampler.forecast()
    assert again is not None
    assert again[0] == early[0], "a trial keeps its error at the next rung"
    for number in range(9):
        sampler.tell(number, 3, 0.0, NS, at_rung=True)
    later = sampler.forecast()
    assert later is not None
    assert later[0] != early[0], "the model has been fitted again"


def test_sampler_of_a_simulation_makes_no_forecast_without_a_model() -> None:
    few, other = forecasting(), forecasting(thrifty=False)
    for sampler, count in ((few, 7), (other, 20)):
        for number in range(count):
            sampler.suggest(number)
            sampler.tell(number, 1, 0.0, NS, at_rung=True)
        assert sampler.forecast() is None


def test_forecasts_of_a_scaled_down_job_allow_the_distance_that_the_whole_job_allows() -> None:
    """The reach of a job grows with its trained steps up to six times the initial one."""
    whole = forecasts_of(forecasting(), [1] * 9)
    scaled = forecasts_of(forecasting(size=100), [1] * 9)
    assert [mean for mean, _ in scaled] == [mean for mean, _ in whole]
    for (_, deviation), (_, wider) in zip(whole, scaled, strict=True):
        assert wider == pytest.approx(6 * deviation)


def test_plan_of_auto_completes_more_trials_than_promotion_by_current_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forecasts change while a job runs, so a trial that has to wait at a rung may be promoted later."""

    def share() -> float:
        fidelity = Fidelity("epoch", 1, 27)
        plan = made(
            usd="5", scheduler="auto", sampler="auto", evidence=losses(), fidelity=fidelity, mode="min"
        )
        return plan.rungs[-1].trials / plan.trials.expected

    by_forecasts = share()
    monkeypatch.setattr(KnowingSampler, "forecast", lambda _: None)
    assert by_forecasts > 1.2 * share()


def test_plan_in_a_space_without_a_model_makes_no_forecasts() -> None:
    """With more than 40 parameters, the sampler `auto` is TPE."""
    more = Space({**SPACE.parameters, **{f"x{number}": Float(0, 1) for number in range(39)}})

    def spaced(sampler: SamplerName, space: Space) -> list[float]:
        asked = question(usd="5", scheduler="auto", sampler=sampler, evidence=seen())
        plan = planner.plan(replace(asked, spec=replace(asked.spec, space=space)), simulate)
        return [rung.trials for rung in plan.rungs]

    assert spaced("auto", SPACE) != spaced("tpe", SPACE)
    assert spaced("auto", more) == spaced("tpe", more)


def test_trial_on_several_spot_machines_ends_with_the_first_loss_of_one() -> None:
    one, eight = (SpotLife(2 * 3600 * NS, nodes=nodes).of_market(0.5) for nodes in (1, 8))
    assert one.mean_ns is not None
    assert eight.mean_ns == one.mean_ns // 8
    assert eight.wait_ns == one.wait_ns, "only the lost machine is waited for"
    assert eight.share == one.share**8


def test_machines_of_every_spot_type_are_preempted() -> None:
    """Spot machines live ten minutes on average, and the trial trains for about three hours."""
    spec = question(
        usd="1000", scheduler="none", trials=1, fidelity=Fidelity("epoch", 1, 200), market="spot"
    ).spec
    paces = Paces(of_given(60 * NS, known=KnownDelays(), spread=0), 200)
    types = tuple(Offer(name, Price(1), 1, 1, "spot") for name in ("first", "second"))
    life = SpotLife(600 * NS)
    one, two = (
        simulate(Scenario(spec, offers, 1, paces, 1.0, Delays(), 60 * NS, spot=life))
        for offers in (types[:1], types)
    )
    assert one.preemptions > 5
    assert two.preemptions > one.preemptions / 2


@examples(4, gate=2, phases=[Phase.generate])
@given(
    usd=st.sampled_from(["0.2", "1", "40"]),
    trials=st.sampled_from([None, 3, 20]),
    scheduler=st.sampled_from(["auto", "asha", "none"]),
    market=st.sampled_from(["on_demand", "spot", "spot_with_fallback"]),
    known=st.sampled_from(["given", "seen", "nothing"]),
)
def test_plan_figures_follow_from_the_inputs(
    usd: str, trials: int | None, scheduler: SchedulerName, market: MarketPolicy, known: str
) -> None:
    evidence = {"given": None, "seen": seen(), "nothing": of_nothing(KnownDelays())}[known]
    asked = question(usd=usd, trials=trials, scheduler=scheduler, market=market, evidence=evidence)
    plan = planner.plan(asked, simulate)
    assert planner.plan(asked, simulate) == plan
    assert sum(rung.usd.micro_usd for rung in plan.rungs) == round(plan.usd.expected * 1e6)
    assert plan.usd.low <= plan.usd.expected <= plan.usd.high <= float(usd)
    assert trials is None or plan.trials.high <= trials
    assert plan.trials.low <= plan.trials.expected <= plan.trials.high
    assert plan.rungs[0].trials <= plan.trials.expected
    assert sum(plan.ends.values()) == plan.inputs.runs
    for rung in plan.rungs:
        again = rung.steps * rung.step_seconds * rung.usd_per_hour.micro_usd_per_hour / 3600
        a_step = rung.step_seconds * rung.usd_per_hour.micro_usd_per_hour / 3600
        assert rung.train_usd.micro_usd == pytest.approx(again, rel=1e-3, abs=0.01 * a_step + 2)
        trained = rung.train_usd.micro_usd / max(1, rung.usd_per_hour.micro_usd_per_hour)
        # The overhead around the training may have been in the other market.
        least, most = (
            3_600_000 * (trained + rung.overhead_usd.micro_usd / (float(price) * 1e6))
            for price in (max(PRICES[market], key=float), min(PRICES[market], key=float))
        )
        assert 0.98 * least - 5000 <= rung.gpu_hours * 3_600_000 <= 1.02 * most + 5000


@examples(3, gate=1, phases=[Phase.generate])
@given(
    hours=st.sampled_from([0.01, 0.5, 1.5, 1000]),
    spread=st.sampled_from([0.0, 0.25]),
    market=st.sampled_from(["on_demand", "spot"]),
)
def test_deadline_affects_the_choice_but_no_price(hours: float, spread: float, market: MarketPolicy) -> None:
    evidence = of_given(60 * NS, known=KnownDelays(), spread=spread)
    asked = question(usd="1", trials=4, scheduler="none", market=market, evidence=evidence)
    fast = replace(
        asked.candidates[0],
        instance_type="fast",
        offers=(Offer("fast", Price.from_usd_per_hour("4"), 1, 1, "on_demand"),),
        market="on_demand",
        speed=3.0,
    )
    asked = replace(asked, candidates=(*asked.candidates, fast), choose=True)
    relaxed = planner.plan(asked, simulate)
    due = planner.plan(replace(asked, deadline_ns=round(hours * 3600 * NS)), simulate)

    def priced(plan: JobPlan) -> list[Alternative]:
        return [replace(alternative, in_time=None, chosen=False) for alternative in plan.alternatives]

    assert priced(due) == priced(relaxed)
    assert all(alternative.usd is not None for alternative in due.alternatives)
    (name,) = [alternative.instance_type for alternative in due.alternatives if alternative.chosen]
    (only,) = [candidate for candidate in asked.candidates if candidate.instance_type == name]
    alone = planner.plan(replace(asked, candidates=(only,)), simulate)
    assert (due.usd, due.trials, due.rungs) == (alone.usd, alone.trials, alone.rungs)
    if name == next(alternative.instance_type for alternative in relaxed.alternatives if alternative.chosen):
        assert due.usd == relaxed.usd


def test_large_job_is_simulated_at_smaller_scale_with_the_same_cost() -> None:
    """A large job is simulated at a smaller scale. For trials trained in full, cost and time must equal those of all 1000."""
    whole = made(usd="1000000", trials=1000, scheduler="none", fidelity=Fidelity("epoch", 1, 9))
    a_trial = 9 * 60 / 3600
    assert whole.usd.expected == pytest.approx(1000 * a_trial, rel=0.1)
    assert whole.finish_seconds.expected / 3600 == pytest.approx(1000 * a_trial / 2, rel=0.15)
    asha = made(usd="1000000", trials=729, fidelity=Fidelity("epoch", 1, 729, 3))
    assert asha.rungs[0].trials == pytest.approx(729, rel=0.05)
    assert asha.rungs[-1].trials < 5


@pytest.mark.parametrize("gpus", [0, 1])
def test_large_job_has_as_many_trials_on_free_machines_as_on_others(gpus: int) -> None:
    """The job is simulated at a smaller scale and ends at its wall-clock limit."""
    paid = question(usd="1000000", wall_clock_ns=100 * 3600 * NS)
    paid = replace(paid, spec=replace(paid.spec, resources=Resources(1, gpus)))
    (candidate,) = paid.candidates
    offers = tuple(replace(offer, price=Price(0)) for offer in candidate.offers)
    free = replace(paid, candidates=(replace(candidate, offers=offers),))
    plans = [planner.plan(each, simulate) for each in (paid, free)]
    assert plans[1].usd.expected == 0 < plans[0].usd.expected
    assert plans[0].trials.expected > 100
    assert plans[1].trials.expected == pytest.approx(plans[0].trials.expected, rel=0.02)
    assert plans[1].gpu_hours.expected == pytest.approx(plans[0].gpu_hours.expected, rel=0.02)


@pytest.mark.parametrize("usd", ["0.06", "0.5", "20"])
def test_expected_trials_are_not_fewer_than_those_that_reach_the_first_rung(usd: str) -> None:
    plan = made(usd=usd, evidence=losses(), mode="min", scheduler="auto")
    assert plan.rungs[0].trials <= plan.trials.expected
    assert plan.trials.expected == pytest.approx(plan.rungs[0].trials, abs=2.5)
    (alternative,) = plan.alternatives
    assert alternative.trials == round(plan.trials.expected)


def test_doubt_widens_the_cost_range() -> None:
    sure, unsure = made(trials=10), made(trials=10, evidence=of_nothing(KnownDelays()), usd="1000")
    assert (unsure.usd.high - unsure.usd.low) * sure.usd.expected > 3 * (
        sure.usd.high - sure.usd.low
    ) * unsure.usd.expected


def test_evidence_predicts_the_best_metric_and_whether_the_target_is_met() -> None:
    easy, hard = made(evidence=seen(), target=0.2), made(evidence=seen(), target=5.0)
    assert easy.target is not None
    assert hard.target is not None
    assert easy.target.chance > 0.99
    assert hard.target.chance < 0.01
    assert easy.usd.expected < hard.usd.expected
    assert hard.best is not None
    assert 0.5 < hard.best.expected < 1.5
    assert made(target=0.2).target is None


def accuracies() -> PaceEvidence:
    """Build evidence of trials with accuracies from 0.4 to 0.9."""
    curves = [tuple((step, 0.3 + 0.06 * number * step / 9) for step in (1, 3, 9)) for number in range(2, 11)]
    trials = [SeenTrial(SPACE.sample(Random(len(curves))), 10 * NS, curve, 9) for curve in curves]
    return of_trials(trials, source="history", delays=Delays(), jobs=["job_1"])


@pytest.mark.parametrize(
    ("evidence", "mode"),
    [(seen(), "max"), (losses(), "min"), (accuracies(), "max")],
    ids=["max", "min", "bounded"],
)
@pytest.mark.parametrize("usd", ["3", "30"])
def test_chance_of_the_target_follows_from_the_interval_of_the_best(
    evidence: PaceEvidence, mode: Mode, usd: str
) -> None:
    best = made(evidence=evidence, mode=mode, usd=usd).best
    assert best is not None
    ends = [best.low, best.expected, best.high]
    plans = [made(evidence=evidence, mode=mode, usd=usd, target=target) for target in ends]
    chances = [plan.target.chance for plan in plans if plan.target is not None]
    assert chances == pytest.approx([0.9, 0.5, 0.1] if mode == "max" else [0.1, 0.5, 0.9])
    assert [plan.best for plan in plans] == [best] * 3


def test_chance_falls_with_the_target_and_is_zero_beyond_the_bounds_of_the_metric() -> None:
    plans = [made(evidence=accuracies(), target=target) for target in (0.5, 0.8, 0.9, 0.95, 1.0, 1.01, 90)]
    chances = [plan.target.chance for plan in plans if plan.target is not None]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.99
    assert chances[-3] > 0
    assert chances[-2:] == [0, 0]


def test_chance_is_one_or_zero_if_all_trials_are_equal() -> None:
    trials = [SeenTrial(SPACE.sample(Random(n)), 10 * NS, ((1, 7.0), (9, 7.0)), 9) for n in range(12)]
    evidence = of_trials(trials, source="history", delays=Delays(), jobs=["job_1"])
    plans = [made(evidence=evidence, target=target) for target in (6.9, 7.0, 7.1)]
    assert [plan.target.chance for plan in plans if plan.target is not None] == [1, 1, 0]


def test_diverged_trial_does_not_change_the_expected_best() -> None:
    usual, known = made(evidence=losses(), mode="min"), Paces(losses(diverged=1e6), 9)
    plan = made(evidence=losses(diverged=1e6), mode="min")
    assert usual.best is not None
    assert plan.best is not None
    assert plan.best.low >= 0
    assert plan.best.expected == pytest.approx(usual.best.expected, abs=0.1)
    assert known.place_spread < 0.5
    target = made(evidence=losses(diverged=1e6), mode="min", target=0.02).target
    assert target is not None
    assert target.chance < 0.01


@pytest.mark.parametrize(
    "scores", [[1, 1, 1, 1, 1, 0.6, 0.5, 0.3, 0.2], [0.98, 0.97, 0.97, 0.96, 0.95, 0.9, 0.85, 0.8]]
)
def test_bad_trials_have_not_diverged_if_most_are_near_the_best(scores: list[float]) -> None:
    trials = [SeenTrial({"lr": 0.1}, 10 * NS, ((1, score / 2), (9, score)), 9) for score in scores]
    paces = Paces(of_trials(trials, source="history", delays=Delays(), jobs=["job_1"]), 9)
    assert not any(paces.has_diverged(trial) for trial in trials)
    assert paces.place_spread > 0


def test_plan_of_tiny_losses_is_that_of_usual_ones_times_a_factor() -> None:
    """The losses are from 0.15 to 0.8, and a ten-thousandth of that."""
    large, small = (made(evidence=losses(times=times, gain=0.5), mode="min").best for times in (0.5, 0.5e-4))
    assert large is not None
    assert small is not None
    assert small.expected == pytest.approx(1e-4 * large.expected, rel=0.3)
    assert small.low < small.high


def test_huge_first_loss_of_a_trial_does_not_change_the_curves_of_others() -> None:
    trials = losses().trials
    spike = replace(trials[0], curve=((1, -1e6), *trials[0].curve[1:]))
    early = [replace(trial, curve=trial.curve[:1], last_step=1) for trial in trials[6:]]
    known = of_trials([spike, *trials[1:6], *early], source="history", delays=Delays(), jobs=["job_1"])
    paces = Paces(known, 9)
    assert all(-1.5 < paces.scale.score(paces.place(trial, 9)) < 0 for trial in known.trials)


def test_expected_loss_stays_positive_and_falls_with_the_budget() -> None:
    """Both jobs are scaled down to the same number of simulated trials."""
    small, large = (made(evidence=losses(gain=9), mode="min", usd=usd).best for usd in ("1", "2"))
    assert small is not None
    assert large is not None
    assert 0 < large.expected < small.expected
    for best in (small, large):
        assert 0 < best.low < best.expected < best.high


def test_expected_best_is_less_certain_if_no_trial_was_seen_to_its_last_step() -> None:
    known = losses()
    early = [replace(trial, curve=trial.curve[:2], last_step=2) for trial in known.trials]
    short = of_trials(early, source="history", delays=Delays(), jobs=["job_1"])
    whole, cut = (made(evidence=evidence, mode="min") for evidence in (known, short))
    assert whole.best is not None
    assert cut.best is not None
    assert cut.best.high / cut.best.low > whole.best.high / whole.best.low
    rough = "no trial was seen after step 2 of 9"
    assert any(rough in warning for warning in cut.warnings)
    assert not any("no trial was seen after" in warning for warning in whole.warnings)


@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
def test_configurations_with_a_given_result_are_not_planned(sampler: SamplerName) -> None:
    asked = question(sampler=sampler, usd="50", evidence=seen())
    space = Space({"lr": Categorical((0.1, 0.2)), "width": Categorical((8, 16, 32))})
    given = tuple(StartPoint({"lr": 0.1, "width": width}, 0.5) for width in (8, 16, 32))
    plan = planner.plan(replace(asked, spec=replace(asked.spec, space=space, start=given)), simulate)
    assert plan.trials.expected == 3
    assert plan.ends.keys() <= {"trials", "space_exhausted"}


def test_learning_sampler_prefers_better_and_more_expensive_trials() -> None:
    at_random, learned = (
        made(evidence=seen(), trials=40, usd="50"),
        made(evidence=seen(), trials=40, usd="50", sampler="tpe"),
    )
    assert learned.usd.expected > 1.1 * at_random.usd.expected
    assert learned.best is not None
    assert at_random.best is not None
    assert learned.best.expected > at_random.best.expected


def test_too_short_wall_clock_limit_gives_a_warning() -> None:
    plan = made(trials=20, wall_clock_ns=600 * NS)
    assert plan.in_time is not None
    assert plan.in_time.met == 0
    assert plan.finish_seconds.high <= 600
    assert any("does not finish within 600 s" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        (TrialLimits(max_duration_ns=60 * NS), "stop.trial.max_duration"),
        (TrialLimits(patience=3, max_cost_micro_usd=1), "stop.trial.patience or stop.trial.max_cost_usd"),
    ],
)
def test_plan_names_the_limits_of_trials_that_it_ignores(limits: TrialLimits, names: str) -> None:
    asked = question()
    plan = planner.plan(replace(asked, spec=replace(asked.spec, trial_limits=limits)), simulate)
    assert [warning for warning in plan.warnings if f"because of {names};" in warning]
    assert not [warning for warning in made().warnings if "stop.trial" in warning]


def test_min_fidelity_skips_a_rung_that_does_not_predict_the_end() -> None:
    rng, trials = Random(2), []
    for _ in range(20):
        early, late = rng.random(), rng.random()
        curve = ((1, early), (3, late + 0.01 * early), (9, late + 0.1))
        trials.append(SeenTrial(SPACE.sample(rng), NS, curve, 9))
    evidence = of_trials(trials, source="history", delays=Delays())
    paces = Paces(evidence, 9)
    assert abs(rank_correlation(paces, 1, 9) or 0) < 0.5
    assert (rank_correlation(paces, 3, 9) or 0) > 0.9
    (choice,) = [
        made_choice for made_choice in made(evidence=evidence).choices if made_choice.what == "fidelity_min"
    ]
    assert (choice.asked, choice.chosen) == ("1", "3")


@pytest.mark.parametrize("gain", [0.2, 0.052])
def test_reduction_factor_is_advised_if_its_result_is_significantly_better(gain: float) -> None:
    """The losses of three runs with factor 2 differ by 0.1, so the standard error of their mean is 0.058."""

    def scored(scenario: Scenario) -> SimulatedOutcome:
        factor, number = scenario.spec.fidelity.reduction_factor, scenario.seed % 1000
        return replace(simulate(scenario), best=-0.5 + (gain + 0.1 * (number - 1) if factor == 2 else 0))

    plan = planner.plan(question(evidence=losses(), mode="min"), scored)
    (choice,) = [choice for choice in plan.choices if choice.what == "reduction_factor"]
    if gain < 0.058:
        assert choice.chosen == "3"
    else:
        why = "expected best auc 0.3 instead of 0.5, from 3 simulated runs and 10 with factor 3"
        assert (choice.chosen, choice.why) == ("2", why)


def test_smoothing_keeps_mean_and_spread() -> None:
    rng = Random(0)
    drawn = [smoothed(rng.gauss(3, 2), 3, 2, rng.gauss(0, 1), 0.7) for _ in range(4000)]
    mean = math.fsum(drawn) / len(drawn)
    assert mean == pytest.approx(3, abs=0.15)
    assert math.sqrt(math.fsum((x - mean) ** 2 for x in drawn) / len(drawn)) == pytest.approx(2, rel=0.05)


def test_drawn_paces_have_the_observed_mean() -> None:
    evidence, rng = seen(40), Random(3)
    training = DrawnTraining(Paces(evidence, 9), seed=1, factor=1.0, coarse=1)
    drawn = [training.step_ns(SPACE.sample(rng), 1) for _ in range(600)]
    assert math.fsum(drawn) / len(drawn) == pytest.approx(evidence.step_ns, rel=0.15)


def test_plan_of_short_steps_includes_worker_start_time() -> None:
    """Steps take 60 ms, the setup of a trial 1.4 s, and a worker 11 s to become ready.

    Simulated at a hundredth of its size, this job would not reach a step.
    """
    known = KnownDelays(11 * NS, 1_400_000_000, 200_000_000, 80_000_000)
    short = of_given(60_000_000, known=known)
    plan = made(usd="0.1", evidence=short)  # 360 s, of which two workers take 11 s each to become ready
    assert plan.rungs[0].trials == pytest.approx((360 - 22) / 2.1, rel=0.25)
    assert 0.098 < plan.usd.expected <= 0.1
    assert plan.rungs[0].train_usd < plan.rungs[0].overhead_usd


def test_training_in_steps_of_less_than_a_micro_dollar_is_not_booked_as_overhead() -> None:
    """A step of 20 ms costs 0.28 micro-dollars."""
    known = KnownDelays(0, 20_000_000, 20_000_000, 20_000_000)
    price = Price.from_usd_per_hour("0.05")
    asked = question(usd="0.002", scheduler="auto", evidence=of_given(20_000_000, known=known))
    candidate = replace(
        asked.candidates[0],
        offers=tuple(replace(offer, price=price) for offer in asked.candidates[0].offers),
    )
    plan = planner.plan(replace(asked, candidates=(candidate,)), simulate)
    assert len(plan.rungs) > 1
    for rung in plan.rungs:
        assert rung.usd_per_hour == price
        trained = rung.steps * rung.step_seconds * 0.05 / 3600
        assert rung.train_usd.usd == pytest.approx(trained, abs=2e-6)
    assert sum(rung.usd.micro_usd for rung in plan.rungs) == round(plan.usd.expected * 1e6)


def test_warm_up_time_is_derived_from_the_first_attempts_of_each_worker() -> None:
    price = Price.from_usd_per_hour("3.6")

    def attempt(trial: int, begin_s: float, setup_s: float) -> AttemptRow:
        costs: dict[CostKind, Cost] = {"setup": Cost(price.of(round(setup_s * NS)))}
        began, ended = Instant(round(begin_s * NS)), Instant(round((begin_s + setup_s + 1) * NS))
        return AttemptRow(
            f"trial_{trial}", 1, began, node="n", from_step=0, to_step=3, costs=costs, market="on_demand",
            price=price, assigned_at=began, ended_at=ended,
        )  # fmt: skip

    job = [attempt(0, 0, 11), attempt(1, 2, 13), attempt(2, 14, 0.5), attempt(3, 17, 1.5)]
    # on one worker, on the same machine
    later = [attempt(0, 100, 12), attempt(1, 114, 0.5), attempt(2, 116, 1.5)]
    for jobs in ([job], [job, later]):
        delays = delays_of(jobs)
        assert delays.setup_ns == pytest.approx(NS, rel=0.001)
        assert delays.warming_ns == pytest.approx(11 * NS, rel=0.001)


def test_rounding_of_costs_does_not_lengthen_measured_delays() -> None:
    """A micro-dollar pays for 72 ms of this machine, and each attempt is billed in whole micro-dollars."""
    rate, rng = Rate(Price.from_usd_per_hour("0.05")), Random(1)
    attempts, setups_ns, idle_ns = [], [], []
    for number in range(500):
        setup, idle, train = (
            round(rng.uniform(0.5, 1.5) * ns) for ns in (50_000_000, 15_000_000, 60_000_000)
        )
        setups_ns, idle_ns = [*setups_ns, setup], [*idle_ns, idle]
        costs = slice_costs(rate, 0, {"setup": setup, "idle": idle, "train": train})
        began = Instant(number * NS)
        attempts.append(AttemptRow(
            f"trial_{number}", 1, began, node="n", from_step=0, to_step=3, costs=costs, market="on_demand",
            price=rate.price, assigned_at=began, ended_at=Instant((number + 1) * NS),
        ))  # fmt: skip
    delays = delays_of([attempts])
    assert delays.setup_ns == pytest.approx(fmean(setups_ns), rel=0.1)
    assert delays.idle_ns == pytest.approx(fmean(idle_ns), rel=0.15)


def test_waiting_for_the_driver_is_measured_and_planned() -> None:
    price = Price.from_usd_per_hour("3.6")
    idle: dict[CostKind, Cost] = {"setup": Cost(price.of(NS)), "idle": Cost(price.of(2 * NS))}
    began = Instant(0)
    row = AttemptRow(
        "trial_0", 1, began, node="n", from_step=0, to_step=3, costs=idle, market="on_demand",
        price=price, assigned_at=began, ended_at=Instant(4 * NS),
    )  # fmt: skip
    assert delays_of([[row]]).idle_ns == pytest.approx(2 * NS, rel=0.001)
    known = of_given(NS, known=KnownDelays(0, NS, NS, 0))
    waits = replace(known, delays=replace(known.delays, idle_ns=4 * NS))
    quick, slow = (made(usd="0.5", evidence=evidence, scheduler="none") for evidence in (known, waits))
    a_trial_s = 1 + 9  # without idle time: the setup and nine steps
    assert slow.trials.expected / quick.trials.expected == pytest.approx(
        a_trial_s / (a_trial_s + 4), rel=0.05
    )


def test_predicted_accuracy_stays_below_one() -> None:
    """Early accuracies from 0.2 to 0.93 rise by a quarter on average. No trial may be predicted to end at 1."""
    rng, trials = Random(3), []
    for number in range(12):
        start = 0.2 + 0.73 * number / 11
        end = 1 - (1 - start) * 0.5
        curve = ((1, start), (2, 1 - (1 - start) * 0.8)) if number % 4 else ((1, start), (2, start), (9, end))
        trials.append(SeenTrial(SPACE.sample(rng), NS, curve, curve[-1][0]))
    evidence = of_trials(trials, source="pilot", delays=Delays(), jobs=["job_1"])
    plan = made(evidence=evidence, sampler="auto")
    assert plan.best is not None
    assert 0.93 < plan.best.expected < 0.995


@pytest.mark.parametrize(
    ("times", "mode", "warns"),
    [(100, "max", True), (1, "max", False), (60, "max", False), (1000, "max", False), (-100, "min", False)],
)
def test_plan_warns_if_a_percentage_would_exceed_100(times: float, mode: Mode, warns: bool) -> None:
    """The best of the trials ends at 0.9 times the factor."""
    trials = [
        replace(trial, curve=tuple((step, times * score) for step, score in trial.curve))
        for trial in accuracies().trials
    ]
    plan = made(evidence=of_trials(trials, source="history", delays=Delays(), jobs=["job_1"]), mode=mode)
    assert any("auc is at most 100" in warning for warning in plan.warnings) is warns


def test_plan_has_as_many_trials_as_the_budget_allows() -> None:
    for trials in (40, 333):
        plan = made(usd="10000", trials=trials)
        assert plan.rungs[0].trials == trials
        assert plan.trials.expected == plan.trials.high == trials


def test_trials_too_fast_to_measure_give_a_plan_with_bounded_cost() -> None:
    rng = Random(3)
    paces = [1, 1, 22_000, 593_334_578, 38_136_875_976, 1]
    trials = [SeenTrial(SPACE.sample(rng), ns, ((1, 0.5),), 1, early_ns=ns, later_ns=2 * ns) for ns in paces]
    known = of_trials(trials, source="pilot", delays=Delays(), jobs=["job_1"], space=SPACE)
    plan = made(evidence=known, usd="0.2", trials=3)
    assert 0 < plan.usd.low <= plan.usd.high <= 0.2
