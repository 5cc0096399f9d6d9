"""Replays of simulated jobs: an honest record has no difference, and each changed fact is found at its event."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests import seeds
from tests.simulation.test_simulated_jobs import Curves, check_books, loop_config, spec
from tuner.domain import events as ev
from tuner.domain.ids import trial_id
from tuner.domain.job import Confirm, JobSpec, SamplerName, SchedulerName, StartPoint, TrialLimits
from tuner.domain.money import Cost, Money
from tuner.domain.objective import Fidelity
from tuner.domain.records import CheckpointRow, ReportRow, WarmStartTrial
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.driver.replay import Difference, Fold, JobRecord, Replayed, Samplers, check, compare
from tuner.driver.warm_starts import WarmStarts
from tuner.simulator.world import NONE, Faults, SimulatedRun
from tuner.tuning.samplers import sampler_for

FAULTS = Faults(crash=0.05, repeat=0.2, driver_restart=0.03, loss=0.05, clock_jump=0.02)
SCHEDULERS: list[SchedulerName] = ["auto", "asha", "asha_stopping", "none"]
POLICIES: list[tuple[SchedulerName, SamplerName]] = [
    *((scheduler, "random") for scheduler in SCHEDULERS),
    ("auto", "auto"),
    ("none", "auto"),
    ("asha", "tpe"),
    ("asha", "grid"),
    ("asha", "cmaes"),
]


def ran(
    job: JobSpec, *, concurrency: int = 2, faults: Faults = NONE, seed: int = 0, **more: Any
) -> SimulatedRun:
    run = SimulatedRun(job, loop_config(concurrency), Curves(), faults=faults, seed=seed, **more)
    run.run()
    return run


def record_of(run: SimulatedRun) -> JobRecord:
    tables = run.journal.tables
    trials = {name: (state, config) for name, (state, config, _) in tables.trials.items()}
    return JobRecord(list(enumerate(tables.events, 1)), trials, tables.job[:2])


def samplers_of(job: JobSpec) -> Samplers:
    return lambda _: sampler_for(job)


def replayed(
    run: SimulatedRun, record: JobRecord | None = None, samplers: Samplers | None = None, **more: Any
) -> Replayed:
    return check(
        record or record_of(run),
        run.spec,
        samplers or samplers_of(run.spec),
        rate=run.loop_config.rate,
        concurrency=run.loop_config.concurrency,
        **more,
    )


def difference(run: SimulatedRun, record: JobRecord) -> Difference:
    first_difference = replayed(run, record).difference
    assert first_difference is not None
    return first_difference


def changed(record: JobRecord, number: int, event: ev.Event) -> JobRecord:
    events = [*record.events]
    events[number - 1] = number, event
    return replace(record, events=events)


def numbers(record: JobRecord, kind: type[ev.Event], **fields: object) -> Iterator[int]:
    for number, event in record.events:
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items()):
            yield number


def check_honest(run: SimulatedRun) -> None:
    replay = replayed(run)
    assert replay.difference is None
    assert replay.unchecked == ()
    events = run.journal.tables.events
    assert replay.events == len(events)
    assert replay.answers == sum(isinstance(event, ev.Suggested | ev.Predicted) for event in events) > 0
    assert replay.decisions >= replay.answers


# The gate runs each policy with a quick sampler, and three of them with a slow one.
TROUBLED = [
    pytest.param(*policy, slow, marks=[pytest.mark.extended] if slow and number % 3 != 1 else [])
    for number, policy in enumerate(POLICIES)
    for slow in (False, True)
]


@pytest.mark.parametrize(("scheduler", "sampler", "slow"), TROUBLED)
@pytest.mark.parametrize("seed", seeds.first(1, 8))
def test_record_of_a_troubled_job_has_no_difference(
    seed: int, scheduler: SchedulerName, sampler: SamplerName, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.driver.loop.SLOW_SUGGESTION_NS", -1 if slow else 10**18)
    job = spec("0.008", scheduler=scheduler, sampler=sampler, seed=seed)
    run = ran(job, concurrency=4, faults=FAULTS, seed=seed)
    assert run.restarts > 0
    check_honest(run)


@pytest.mark.parametrize("seed", seeds.first(2, 20))
def test_slow_sampler_that_changes_to_quick_and_back_has_no_difference(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record does not show which suggestions were made outside of a transaction."""
    run = SimulatedRun(
        spec("0.008", scheduler="auto", sampler="auto", seed=seed), loop_config(4), Curves(), seed=seed
    )
    turns = 0

    def change() -> None:
        nonlocal turns
        turns += 1
        monkeypatch.setattr("tuner.driver.loop.SLOW_SUGGESTION_NS", -1 if turns // 7 % 2 else 10**18)

    run.on_turn = change
    run.run()
    check_honest(run)


def test_every_prefix_of_a_record_has_no_difference(pytestconfig: pytest.Config) -> None:
    """A job that still runs is compared as far as it has got. The gate compares every fourth prefix."""
    run = SimulatedRun(
        spec("0.003", scheduler="auto", seed=3), loop_config(4), Curves(), faults=FAULTS, seed=3
    )
    while run.loop.end is None:
        for _ in range(1 if pytestconfig.option.all else 4):
            assert run.loop.end is not None or run.clock.run_next()
        replay = replayed(run)
        assert (replay.difference, replay.unchecked) == (None, ())


def test_launches_of_older_releases_without_a_concurrency_have_no_difference() -> None:
    run = ran(spec("0.004", scheduler="auto", sampler="random", seed=1), concurrency=3, faults=FAULTS)
    record = record_of(run)
    for number in list(numbers(record, ev.Launched)):
        record = changed(record, number, replace(record.events[number - 1][1], concurrency=None))
    assert replayed(run, record).difference is None


def test_job_that_was_topped_up_has_no_difference() -> None:
    run = ran(spec("0.004"))
    run.top_up(replace(run.spec.budget, usd=Money.from_usd("0.006")))
    run.run()
    check_honest(run)


def test_job_with_a_wall_clock_and_a_target_has_no_difference() -> None:
    check_honest(ran(spec("0.02", wall_clock_ns=60 * 10**9)))
    job = spec("0.02", sampler="auto", scheduler="auto")
    check_honest(ran(replace(job, objective=replace(job.objective, target=0.8))))


@pytest.fixture(scope="module")
def run() -> SimulatedRun:
    return ran(spec("0.008", scheduler="auto", sampler="auto", seed=1), concurrency=2)


def test_changed_suggestion_is_found_at_its_event(run: SimulatedRun) -> None:
    record = record_of(run)
    for number in list(numbers(record, ev.Suggested))[::7]:
        event = record.events[number - 1][1]
        assert isinstance(event, ev.Suggested)
        assert event.config is not None
        forged = replace(event, config={**event.config, "width": 9})
        mismatch = difference(run, changed(record, number, forged))
        assert (mismatch.code, mismatch.number, mismatch.trial) == ("answer", number, event.trial)
        assert mismatch.decided.fields["config"] == event.config
        assert mismatch.other.fields["config"] == forged.config
        assert "width=9" in mismatch.other.summary


def test_changed_prediction_is_found_at_its_event(run: SimulatedRun) -> None:
    record = record_of(run)
    predictions = [number for number in numbers(record, ev.Predicted)]
    assert len(predictions) > 10
    for number in predictions[::5]:
        event = record.events[number - 1][1]
        assert isinstance(event, ev.Predicted)
        mismatch = difference(run, changed(record, number, replace(event, go=not event.go)))
        assert (mismatch.code, mismatch.number) == ("answer", number)
        if event.trial is not None:
            assert (mismatch.decided.fields["go"], mismatch.other.fields["go"]) == (event.go, not event.go)


def test_changed_trial_row_is_found_at_the_event_that_caused_its_state(run: SimulatedRun) -> None:
    record = record_of(run)
    assert record.trials is not None
    name = next(name for name, (state, _) in record.trials.items() if state == "completed")
    done = next(numbers(record, ev.Completed, trial=name))
    state, config = record.trials[name]
    mismatch = difference(run, replace(record, trials={**record.trials, name: ("failed", config)}))
    assert (mismatch.code, mismatch.number, mismatch.trial) == ("trial_state", done, name)
    assert (mismatch.decided.fields["state"], mismatch.other.fields["state"]) == ("completed", "failed")
    other: Config = {"lr": 0.5, "width": 8}
    mismatch = difference(run, replace(record, trials={**record.trials, name: (state, other)}))
    assert (mismatch.code, mismatch.trial) == ("trial_config", name)
    without = {key: value for key, value in record.trials.items() if key != name}
    mismatch = difference(run, replace(record, trials=without))
    assert (mismatch.code, mismatch.trial) == ("trial_missing", name)
    extra = trial_id(len(record.trials))
    mismatch = difference(run, replace(record, trials={**record.trials, extra: ("paused", other)}))
    assert (mismatch.code, mismatch.trial) == ("trial_missing", extra)


def test_changed_end_of_the_job_is_found(run: SimulatedRun) -> None:
    record = record_of(run)
    assert record.job == ("succeeded", "budget_usd")
    for state, reason in (("succeeded", "target"), ("failed", "budget_usd"), ("paused", "budget_usd")):
        mismatch = difference(run, replace(record, job=(state, reason)))  # type: ignore[arg-type]
        assert (mismatch.code, mismatch.number) == ("job_end", len(record.events))
        assert mismatch.other.fields == {"type": "job", "state": state, "reason": reason}


def test_state_that_only_the_service_changed_is_not_checked(run: SimulatedRun) -> None:
    replay = replayed(run, replace(record_of(run), job=("running", None)))
    assert replay.difference is None
    assert [gap.what for gap in replay.unchecked] == ["why the job is running"]


def test_removed_event_is_found(run: SimulatedRun) -> None:
    record = record_of(run)
    kept = [*record.events[:20], *record.events[21:]]
    mismatch = difference(run, replace(record, events=kept))
    assert (mismatch.code, mismatch.number) == ("event_missing", 21)


@pytest.mark.parametrize("kind", [ev.Suggested, ev.Predicted])
def test_event_that_was_removed_without_a_gap_is_found(run: SimulatedRun, kind: type[ev.Event]) -> None:
    record = record_of(run)
    number = list(numbers(record, kind))[3]
    kept = [event for n, event in record.events if n != number]
    mismatch = difference(run, replace(record, events=list(enumerate(kept, 1))))
    assert mismatch.number >= number


def test_events_that_nothing_permits_are_found(run: SimulatedRun) -> None:
    record, at = record_of(run), Instant(0)
    inserted: list[tuple[ev.Event, str]] = [
        (ev.Suggested(at, trial_id(2), {"lr": 0.1, "width": 8}), "the sampler was not asked for anything"),
        (ev.Predicted(at, trial_id(0), True), "the sampler was not asked for anything"),
        (ev.Reported(at, trial_id(9999), 1, 0.5, Money(0)), "trial_09999 does not exist"),
        (ev.Stopped(at, trial_id(0)), "trial_00000 was not ordered to stop"),
        (ev.WallClockEnded(at), "the job has no wall-clock limit"),
        (ev.WindowClosed(at), "the job has no time window"),
    ]
    # After both workers got their first trial, nothing is pending and both trials run.
    first = list(numbers(record, ev.Suggested))[1]
    for event, why in inserted:
        events = [event for _, event in record.events]
        events.insert(first, event)
        mismatch = difference(run, replace(record, events=list(enumerate(events, 1))))
        assert (mismatch.code, mismatch.number, mismatch.decided.summary) == ("not_permitted", first + 1, why)
    last = len(record.events)
    after = replace(record, events=[*record.events, (last + 1, ev.ControlRequested(at, "pause"))])
    mismatch = difference(run, after)
    assert (mismatch.code, mismatch.number) == ("not_permitted", last + 1)


@pytest.mark.parametrize("slow", [False, True], ids=["quick sampler", "slow sampler"])
def test_answer_after_a_refused_hold_has_no_difference(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer follows from the state after the events that the same turn recorded before it."""
    monkeypatch.setattr("tuner.driver.loop.SLOW_SUGGESTION_NS", -1 if slow else 10**18)
    after_refusal = 0
    for seed in range(6):
        run = ran(spec("0.004", scheduler="auto", sampler="random", seed=seed), concurrency=8, seed=seed)
        check_honest(run)
        events = run.journal.tables.events
        after_refusal += sum(
            isinstance(before, ev.Refused) and isinstance(event, ev.Suggested | ev.Predicted)
            for before, event in pairwise(events)
        )
    assert after_refusal > 0


def test_time_limit_is_reported(run: SimulatedRun) -> None:
    left = iter([True] * 10)
    replay = replayed(run, may_continue=lambda: next(left, False))
    assert (replay.events, replay.difference) == (10, None)
    assert replay.unchecked[0].why == "the time for this replay was used up after event 10"


def test_without_a_sampler_only_its_answers_are_not_checked(run: SimulatedRun) -> None:
    record = record_of(run)
    config = run.loop_config
    outcome = check(record, run.spec, None, rate=config.rate, concurrency=config.concurrency)
    assert (outcome.difference, outcome.answers, outcome.events) == (None, 0, len(record.events))


# Warm starts


def warm_start(number: int, lr: float) -> WarmStartTrial:
    """A trial of an earlier job with three steps."""
    config: Config = {"lr": lr, "width": 16}
    rows = tuple(
        ReportRow(
            trial_id(number),
            1,
            step,
            Instant(0),
            Curves().value(config, step),
            {},
            Cost(Money(step)),
            step * 10**9,
        )
        for step in (1, 2, 3)
    )
    kept = CheckpointRow(trial_id(number), 3, 1, "memory", 1, 0.1, Instant(0))
    return WarmStartTrial("job_9", trial_id(number), config, rows, kept)


def warm_run() -> tuple[SimulatedRun, dict[str, ev.Inherited]]:
    by_number = {0: warm_start(4, 0.01), 1: warm_start(7, 0.1)}
    run = ran(spec("0.004", scheduler="auto"), warm_starts=WarmStarts(by_number), faults=FAULTS, seed=2)
    inherited = {
        event.inherited.trial: event.inherited
        for event in run.journal.tables.events
        if isinstance(event, ev.Suggested) and event.inherited is not None
    }
    assert set(inherited) == {trial_id(4), trial_id(7)}
    return run, inherited


def test_warm_start_is_compared_with_the_earlier_job() -> None:
    run, inherited = warm_run()
    configs: dict[str, Config] = {
        trial_id(4): {"lr": 0.01, "width": 16},
        trial_id(7): {"lr": 0.1, "width": 16},
    }
    replay = replayed(run, source=lambda it: (configs[it.trial], inherited[it.trial]))
    assert (replay.difference, replay.unchecked) == (None, ())
    other = replace(inherited[trial_id(7)], trained_ns=1)
    replay = replayed(run, source=lambda it: (configs[it.trial], other if it.trial == other.trial else it))
    assert replay.difference is not None
    assert (replay.difference.code, replay.difference.trial) == ("warm_start", trial_id(1))


def test_warm_start_from_a_job_without_a_record_is_not_checked() -> None:
    run, _ = warm_run()
    replay = replayed(run)
    assert replay.difference is None
    assert {gap.what for gap in replay.unchecked} == {
        "the warm start of trial_00000",
        "the warm start of trial_00001",
    }


def test_each_launch_is_replayed_with_the_sampler_of_its_rules() -> None:
    """The sampler of the newer rules has another seed, so its first answer differs."""
    run = ran(spec("0.02", sampler="random"), faults=Faults(driver_restart=0.03))
    record = record_of(run)
    first, *later = numbers(record, ev.Launched)
    launched = dict(record.events)[first]
    assert isinstance(launched, ev.Launched)
    mixed = changed(record, first, replace(launched, rules=ev.RULES - 1))
    algorithm = replace(run.spec.algorithm, seed=run.spec.algorithm.seed + 1)
    newer = replace(run.spec, algorithm=algorithm)

    replay = replayed(run, mixed, lambda rules: sampler_for(newer if rules == ev.RULES else run.spec))
    assert replay.difference is not None
    assert replay.difference.code == "answer"
    assert replay.difference.number == min(n for n in numbers(record, ev.Suggested) if n > later[0])
    assert replayed(run, mixed).difference is None


def test_jobs_of_older_rules_replay_their_trials_without_a_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """They started trials whose end the budget did not pay for."""
    monkeypatch.setattr("tuner.domain.events.RULES", 6)
    job = replace(spec("0.005", scheduler="none"), fidelity=Fidelity())
    run = ran(job, faults=Faults(driver_restart=0.01), returns_at=lambda _: 20)
    monkeypatch.undo()
    record = record_of(run)
    assert replayed(run).difference is None

    launches = [(number, dict(record.events)[number]) for number in numbers(record, ev.Launched)]
    for number, launched in launches:
        assert isinstance(launched, ev.Launched)
        record = changed(record, number, replace(launched, rules=ev.RULES))
    assert difference(run, record).code == "answer"


# Other policies


def compared(run: SimulatedRun, **algorithm: str) -> Replayed:
    other = replace(run.spec, algorithm=replace(run.spec.algorithm, **algorithm))  # type: ignore[arg-type]
    record = record_of(run)
    folds = [
        Fold(job, samplers_of(job), record.events, rate=run.loop_config.rate, concurrency=1)
        for job in (run.spec, other)
    ]
    return compare(record, *folds)


def test_policy_compared_with_itself_has_no_difference(run: SimulatedRun) -> None:
    comparison = compared(run, scheduler="auto", sampler="auto")
    assert (comparison.difference, comparison.events) == (None, len(run.journal.tables.events))


def test_other_sampler_differs_at_its_first_other_suggestion() -> None:
    """The sampler `auto` draws at random until eight trials have reported, as `random` does. The scheduler `none` needs no forecasts."""
    run = ran(spec("0.02", scheduler="none", sampler="auto"))
    comparison = compared(run, sampler="random")
    assert comparison.difference is not None
    assert comparison.difference.code == "answer"
    assert comparison.difference.trial is not None
    assert comparison.difference.trial >= trial_id(8)
    event = dict(record_of(run).events)[comparison.difference.number]
    assert isinstance(event, ev.Suggested)
    assert (
        comparison.difference.decided.fields["config"]
        == event.config
        != comparison.difference.other.fields["config"]
    )


def test_other_scheduler_differs_at_its_first_other_command(run: SimulatedRun) -> None:
    comparison = compared(run, scheduler="none")
    assert comparison.difference is not None
    assert comparison.difference.code == "commands"
    both = comparison.difference.decided, comparison.difference.other
    begin, other = (side.fields["commands"][0] for side in both)
    assert (begin["type"], begin["trial"]) == (other["type"], other["trial"]) == ("begin", trial_id(0))
    assert begin["target_step"] < other["target_step"] == 27


@pytest.mark.parametrize(("scheduler", "sampler"), [("auto", "auto"), ("asha", "grid")])
def test_configurations_of_the_user_are_tried_first(scheduler: SchedulerName, sampler: SamplerName) -> None:
    first: list[Config] = [{"lr": 0.5, "width": 9}, {"lr": 0.01, "width": 8}, {"lr": 0.02, "width": 8}]
    points = (*(StartPoint(config) for config in first), StartPoint({"lr": 0.3, "width": 60}, 0.4))
    job = replace(spec("0.008", scheduler=scheduler, sampler=sampler), start=points)
    run = ran(job, concurrency=2, faults=Faults(driver_restart=0.05), seed=3)
    assert run.restarts > 0
    trials = [config for _, config, _ in run.journal.tables.trials.values()]
    assert trials[:3] == first
    assert len(trials) > 4
    assert {"lr": 0.3, "width": 60} not in trials
    check_honest(run)


@pytest.mark.parametrize(("scheduler", "sampler"), [("auto", "auto"), ("asha", "cmaes"), ("none", "random")])
@pytest.mark.parametrize("seed", seeds.first(1, 20))
def test_requests_of_users_are_replayed(scheduler: SchedulerName, sampler: SamplerName, seed: int) -> None:
    """A user changes the number of trials at once, and enqueues, stops and promotes trials, while the driver restarts."""
    job, rng = spec("0.008", scheduler=scheduler, sampler=sampler, seed=seed), Random(seed)
    run = SimulatedRun(job, loop_config(3), Curves(), faults=FAULTS, seed=seed)

    def steer() -> None:
        loop, at = run.loop, run.clock.now()
        if loop.end is not None or not loop.state.trials or rng.random() < 0.9:
            return
        request, trial = loop.state.requests + 1, rng.choice(loop.state.trials).id
        if rng.random() < 0.3:
            loop.handle_event(ev.ConcurrencyChanged(at, rng.randint(1, 4)))
        elif rng.random() < 0.5:
            loop.handle_event(ev.EnqueueRequested(at, request, {"lr": rng.uniform(0.1, 0.7), "width": 9}))
        else:
            kind = rng.choice([ev.StopRequested, ev.PromoteRequested])
            loop.handle_event(kind(at, request, trial))

    run.on_turn = steer
    run.run()
    kinds = {type(event) for event in run.journal.tables.events}
    assert kinds >= {ev.ConcurrencyChanged, ev.EnqueueRequested, ev.StopRequested, ev.PromoteRequested}
    check_books(run)
    check_honest(run)


@pytest.mark.parametrize("scheduler", ["auto", "none"])
def test_job_that_is_not_worth_its_money_is_replayed(scheduler: SchedulerName) -> None:
    """The driver restarts in few of the messages, because each restart replays all events of this long job."""
    job = spec("0.5", scheduler=scheduler, sampler="random")
    run = ran(replace(job, worth_micro_usd=1000), faults=replace(FAULTS, driver_restart=0.01), seed=2)
    assert run.restarts > 0
    assert run.loop.end is not None
    assert run.loop.end.reason == "worth"
    assert run.journal.tables.account.posted.usd < Money.from_usd(0.25)
    check_honest(run)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_trials_over_their_own_limits_are_replayed(sampler: SamplerName) -> None:
    limits = TrialLimits(patience=9, min_gain=0.02, max_cost_micro_usd=500)
    # No message is lost: until it is sent again, its trial would train another step, beyond the limit.
    faults = replace(FAULTS, loss=0)
    run = ran(replace(spec("0.008", sampler=sampler), trial_limits=limits), faults=faults, seed=2)
    tables = run.journal.tables
    reasons = " ".join(reason for _, _, reason in tables.trials.values())
    assert "beyond its cost limit of $0.0005" in reasons
    assert max(report.cost.usd.micro_usd for report in tables.reports.values()) <= 500
    check_honest(run)


@pytest.mark.parametrize(
    ("usd", "last", "faults"), [("0.02", 27, NONE), ("0.005", 1, NONE), ("0.02", 27, FAULTS)]
)
def test_best_candidates_are_confirmed_within_the_budget(usd: str, last: int, faults: Faults) -> None:
    job = spec(usd, scheduler="auto", sampler="random", seed=1)
    run = ran(
        replace(job, fidelity=Fidelity(max=last), confirm=Confirm(3, 3, distinct=True)), faults=faults, seed=1
    )
    state = run.loop.state
    repeats = [trial for trial in state.trials if trial.repeats is not None]
    assert all(trial.config == state.trials[trial.repeats or 0].config for trial in repeats)
    if faults is NONE:
        assert run.loop.end is not None
        assert run.loop.end.reason == "confirmed"
        assert [trial.seed for trial in repeats] == [1, 1, 1, 2, 2]
        assert all(run.world.attempts[trial.id].given.seed == trial.seed for trial in state.trials)
        best = sorted(
            (t for t in state.trials if t.repeats is None and t.steps == last),
            key=lambda t: (-(t.value or 0), t.number),
        )
        assert [trial.repeats for trial in repeats] == [best[i].number for i in (0, 1, 2, 0, 1)]
    check_books(run)
    check_honest(run)
