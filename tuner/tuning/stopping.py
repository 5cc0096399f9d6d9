"""Rules that end a job: a reached target, a plateau, only failures, or too little expected gain. Also the limits of single trials."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from tuner.domain.events import Reported
from tuner.domain.money import ZERO, Money
from tuner.domain.objective import Mode, gain_of_next
from tuner.domain.time import NS
from tuner.tuning.state import Ending, State, TrialRecord

ALIKE_FAILURES = 3
FAILURES_WITHOUT_SUCCESS = 10


def usable(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def after_report(state: State, event: Reported) -> Ending | None:
    """Record the reported value and return an ending if the target or a plateau is reached.

    `event.value` must be a finite number.
    """
    assert event.value is not None
    before_spent, state.spent = state.spent, max(state.spent, event.spent)
    state.valid_reports += 1
    if state.trial(event.trial).repeats is not None:  # the search is over
        state.spent_on_repeats += state.spent - before_spent
        return None
    before = state.leader_stage
    trial = state.trial(event.trial)
    score = lead(state, trial, event.value)
    if state.leader_stage > before:
        state.plateau_score = float("-inf")  # scores of different stages of the proxies cannot be compared
    # A report that violates a constraint gains nothing, nor does one of a lower stage, whose scores cannot be compared.
    gains = not trial.violation and state.spec.fidelity.stage(trial.steps) == state.leader_stage
    gained = score if gains else float("-inf")
    return on_target(state, trial, event.step, event.value) or _plateau(state, gained)


def lead(state: State, trial: TrialRecord, value: float) -> float:
    """Make the trial the leader (the best trial) if its value has the best score so far. Return the score of the value.

    If the job has proxies (settings that make early steps cheaper), a stage is a range of steps with the same values of the proxies. Only
    trials in the highest stage that any trial has reached are compared. Of these, a trial with a lower violation of the constraints is
    better, regardless of the scores.
    """
    rank = state.rank_of(trial, value)
    stage, _, score = rank
    best = (state.leader_stage, -state.leader_violation, state.leader_score)
    if state.leader is None or rank > best:
        state.leader_stage, state.leader_violation, state.leader_score = stage, trial.violation, score
        state.leader = trial.number
    if state.finisher is None or rank > state.finisher_rank:
        state.finisher, state.finisher_rank = trial.number, rank
    return score


def on_target(state: State, trial: TrialRecord, step: int, value: float) -> Ending | None:
    objective, fidelity = state.spec.objective, state.spec.fidelity
    if trial.violation or not objective.reached(value) or fidelity.stage(step) < fidelity.last_stage:
        return None
    return Ending("succeeded", "target", f"{trial.id} reached {objective.metric} {value:g} at step {step}")


def _plateau(state: State, score: float) -> Ending | None:
    plateau = state.spec.plateau
    if plateau is None:
        return None
    if score > state.plateau_score and score >= state.plateau_score + plateau.min_gain:
        state.plateau_score, state.plateau_spent = score, state.spent
        return None
    since = state.spent - state.plateau_spent
    if since < Money(plateau.patience_micro_usd):
        return None
    return Ending(
        "succeeded", "plateau", f"{since} was spent without improving the best metric by {plateau.min_gain:g}"
    )


def trial_limit(state: State, trial: TrialRecord, event: Reported) -> str | None:
    """Return why a trial has to stop because of one of its own limits, or None if it may continue.

    A limit on duration or cost counts as reached if the trial's next step, at the present pace, would exceed it.
    """
    limits = state.spec.trial_limits
    if limits is None:
        return None
    if limits.patience is not None and event.value is not None:
        score, stage = state.spec.objective.score(event.value), state.spec.fidelity.stage
        if stage(event.step) > stage(trial.gain_step):
            trial.gain_score = float("-inf")  # scores of different stages of the proxies cannot be compared
        if score > trial.gain_score and score >= trial.gain_score + limits.min_gain:
            trial.gain_score, trial.gain_step = score, event.step
        elif event.step - trial.gain_step >= limits.patience:
            return f"no gain of at least {limits.min_gain:g} in {event.step - trial.gain_step} steps"
    duration_ns, cost = event.duration_ns or 0, (event.cost or ZERO).micro_usd
    # The expected duration of the next step, as a share of the duration so far.
    step = trial.pace_ns / max(1, duration_ns)
    if limits.max_duration_ns is not None and duration_ns * (1 + step) > limits.max_duration_ns:
        return f"another step would take the trial beyond its time limit of {limits.max_duration_ns / NS:g} s"
    if limits.max_cost_micro_usd is not None and cost * (1 + step) > limits.max_cost_micro_usd:
        return (
            f"another step would take the trial beyond its cost limit of {Money(limits.max_cost_micro_usd)}"
        )
    return None


def after_failure(state: State, reason: str) -> Ending | None:
    """Record the failure of a trial. Return an ending if the job has no valid report yet and too many trials have failed.

    Three failures with the same reason are too many, and so are ten with any reasons.
    """
    state.failures.append(reason)
    if state.valid_reports:
        return None
    alike, count = Counter(state.failures).most_common(1)[0]
    if count >= ALIKE_FAILURES:
        return Ending("failed", "error", f"the first {count} trials failed in the same way: {alike}")
    if len(state.failures) >= FAILURES_WITHOUT_SUCCESS:
        return Ending(
            "failed", "error", f"the first {len(state.failures)} trials all failed, the last with: {reason}"
        )
    return None


# The expected gain of the next dollar. A job with `stop.worth` stops when this gain is worth less than a dollar.

POINT = 0.01  # a point, in units of the metric
FEWEST = 16  # the fewest feasible trials with a metric for which a gain is estimated
TAILS = (0.3, 0.5)  # shares of the results that count as the upper tail; the estimate is the mean over both
TAIL_FEWEST = 3


def points_per_usd(scores: Sequence[float], spent: Money, mode: Mode) -> float | None:
    """Return the points that the job's next dollar is expected to gain. A point is 0.01 of the metric.

    Return None if it is too early to tell, if nothing was spent, or if the metric is too large to compute with.

    Args:
        scores: The newest score of each feasible trial that has one, oldest trial first.
        spent: Spend of the job so far, without that of repeats.
        mode: Whether the metric is maximised, so that scores are its values, or minimised, so that they are its negated values.
    """
    if len(scores) < FEWEST or not spent.micro_usd:
        return None
    newer, reach = scores[len(scores) // 2 :], _reach(scores, mode)
    try:
        gains = [
            _cut_off(_excess(results, tail), reach) / (spent.usd * len(results) / len(scores))
            for results in (sorted(scores, reverse=True), sorted(newer, reverse=True))
            for tail in TAILS
        ]
        points = fmean(gains) / POINT
    except OverflowError:  # a sum of metrics exceeds the largest float
        return None
    return points if math.isfinite(points) else None


def _excess(results: Sequence[float], tail: float) -> float:
    """Return by how much the results in the upper tail exceed, on average, the best result below the tail.

    Args:
        results: The scores, best first.
        tail: The share of the results that is in the tail. The tail has at least `TAIL_FEWEST` results.
    """
    count = max(TAIL_FEWEST, round(tail * len(results)))
    return fmean(results[:count]) - results[count]


def _reach(scores: Sequence[float], mode: Mode) -> float:
    """Return the distance from the best score to the highest score that the metric can probably reach, or infinity if unknown.

    That highest score is 0 for a minimised metric without negative values, and 1 for a maximised metric with all values from 0 to 1.
    """
    best = max(scores)
    if mode == "min":
        return -best if best <= 0 else math.inf
    return 1 - best if best <= 1 and min(scores) >= 0 else math.inf


def _cut_off(excess: float, reach: float) -> float:
    """Return the mean of an exponential distribution after it is truncated at `reach`. Its mean before that is `excess`."""
    ratio = reach / excess if excess else math.inf
    if ratio < 1e-6:
        return reach / 2
    return excess if ratio > 50 else excess - reach / math.expm1(ratio)


def ending(state: State) -> Ending | None:
    """Return an ending if the expected gain of the job's next dollar is worth less than a dollar (`stop.worth`). Call this after each attempt."""
    worth = state.spec.worth_micro_usd
    if worth is None or state.confirming:
        return None
    scores = _scores(state)
    spent = state.spent - state.spent_on_repeats if state.rules >= 5 else state.spent
    points = points_per_usd(scores, spent, state.spec.objective.mode)
    if points is None or points * worth >= 1_000_000 or len(scores) < state.worth_from:
        return None
    detail = f"{gain_of_next(points)}, and a point is worth {Money(worth)} (stop.worth)"
    return Ending("succeeded", "worth", detail)


def _scores(state: State) -> list[float]:
    """Return the newest score of each feasible trial of the search that has one, oldest trial first."""
    score = state.spec.objective.score
    searched = (trial for trial in state.trials if trial.repeats is None and not trial.violation)
    return [score(trial.value) for trial in searched if trial.value is not None]


# A job that has ended and a user resumes


def renew_patience(state: State, ended_by: Ending, rules: int) -> None:
    """Give a job that is resumed new patience if the plateau rule or `stop.worth` ended it, or if it ended after a confirmation.

    Otherwise the rule would end the job again at its first report, or after its first attempt. `stop.worth` then waits for as many new
    results as it needs for an estimate. After a confirmation, the cost of its repeats would count as spent without a gain.

    Args:
        rules: The version of the decision rules from now on.
    """
    if (ended_by.reason == "plateau" and rules >= 2) or (ended_by.reason == "confirmed" and rules >= 3):
        state.plateau_spent = state.spent
    elif ended_by.reason == "worth" and rules >= 2:
        state.worth_from = len(_scores(state)) + FEWEST
