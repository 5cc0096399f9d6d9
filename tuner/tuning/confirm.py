"""Confirmation: train the best configurations of a job again with other seeds, to find the best configuration, not the luckiest training.

A part of the budget is reserved for the confirmation (`reserve.py`). It begins when the rest of the budget is used up, or nothing is left
to search. Sequential halving (Karnin, Koren & Somekh, ICML 2013) decides which candidates are trained again: all of them with a second
seed, the better half with a third seed, and so on. Each repeat is a new trial, which the search neither ranks nor learns from. The next
repeat depends on the state and the job's specification alone, so no events record the choice. A job that ends for another reason, such as its target, does not confirm.
"""

import json
import math
from collections.abc import Sequence

from tuner.tuning.state import State, TrialRecord


def begin(state: State) -> bool:
    """Begin the confirmation if the search is over and a candidate can be trained again. Return whether the confirmation began."""
    if state.spec.confirm is None or state.confirming or state.active or state.suggesting:
        return False
    if _next_candidate(state) is None:
        return False
    state.confirming, state.exhausted_limit, state.skipped = True, None, {}
    return True


def next_repeat(state: State) -> TrialRecord | None:
    """Return the repeat to start or resume next. Return None if none is left, or if the choice depends on repeats that still run."""
    for number in sorted(state.ready):
        if state.trials[number].repeats is not None and number not in state.skipped:
            return state.trials[number]
    candidate = _next_candidate(state)
    if candidate is None:
        return None
    seed = 1 + sum(trial.repeats == candidate.number for trial in state.trials)
    repeat = TrialRecord(
        len(state.trials), candidate.config, state.max_step, repeats=candidate.number, seed=seed
    )
    state.trials.append(repeat)
    state.repeats += 1
    state.set(repeat, "new")
    return repeat


def mean(scores: Sequence[float]) -> float:
    """Return the mean of finite scores. The mean is finite even if the sum of the scores exceeds the largest float."""
    return math.fsum(score / len(scores) for score in scores)


def confidence(results: Sequence[Sequence[float]], first: int, second: int) -> float:
    """Return the probability that configuration `first` is better than `second`, by Student's t test with a pooled variance.

    Args:
        results: The scores of each configuration, one for each seed. The variance between seeds is assumed to be the same for all
            configurations.
        first: Index of a configuration.
        second: Index of another configuration, whose mean is not greater.
    """
    degrees = sum(len(scores) - 1 for scores in results)
    difference = mean(results[first]) - mean(results[second])
    try:
        squares = sum((score - mean(scores)) ** 2 for scores in results for score in scores)
    except OverflowError:  # the scores are too large for their variance to be computed
        return 0.5
    spread = math.sqrt(squares / degrees * (1 / len(results[first]) + 1 / len(results[second])))
    if spread <= 0:
        return 1.0 if difference > 0 else 0.5
    from scipy.special import stdtr  # imported here because it takes 0.2 s

    return float(stdtr(degrees, difference / spread))


def _next_candidate(state: State) -> TrialRecord | None:
    assert state.spec.confirm is not None
    score = state.spec.objective.score
    complete = [trial for trial in state.trials if trial.status == "completed" and trial.value is not None]
    feasible = [trial for trial in complete if not trial.violation]
    searched = [trial for trial in feasible if trial.repeats is None and trial.steps == state.max_step]
    if state.spec.confirm.distinct:
        # The search may have trained a configuration several times. Reversed, because the first trial of each configuration counts.
        of_config = {json.dumps(trial.config, sort_keys=True): trial for trial in reversed(searched)}
        searched = list(of_config.values())
    searched.sort(key=lambda trial: (-score(trial.value or 0.0), trial.number))
    candidates = searched[: state.spec.confirm.candidates]
    repeats: dict[int, list[TrialRecord]] = {trial.number: [] for trial in candidates}
    for trial in state.trials:
        if trial.repeats in repeats:
            repeats[trial.repeats].append(trial)

    def rank(candidate: TrialRecord, seed: int) -> tuple[float, float, int]:
        """Return the sort key of a candidate by its results with the seeds below `seed`."""
        earlier = [repeat for repeat in repeats[candidate.number] if repeat.seed < seed]
        results = [repeat for repeat in earlier if repeat.status == "completed" and repeat.value is not None]
        scores = [score(trial.value or 0.0) for trial in (candidate, *results)]
        return math.fsum(trial.violation for trial in results), -mean(scores), candidate.number

    remaining = candidates
    for seed in range(1, state.spec.confirm.seeds):
        # Only earlier seeds decide. Otherwise an unlucky result with this seed would bring back a candidate that was left out.
        remaining = sorted(remaining, key=lambda trial: rank(trial, seed))[: kept(len(candidates), seed)]
        lacking = [trial for trial in remaining if len(repeats[trial.number]) < seed]
        if lacking:
            return lacking[0]
        if any(state.trials[number].repeats is not None for number in state.active):
            return None
    return None


def kept(candidates: int, seed: int) -> int:
    """Return how many of the candidates are trained again with the `seed`th additional seed, counted from 1."""
    return max(1, -(-candidates // (1 << (seed - 1))))
