"""The finish reserve: money is kept back so that the best trial reaches its last step within the budget.

Everything is counted in nanoseconds of one worker, which is what money is worth to a job. Only `auto` keeps a reserve, and
only where an exhausted budget ends the job: one that is to be topped up goes on as if the money did not end.
"""

from tuner.tuning.state import State, TrialRecord

MARGIN = 1.1  # steps differ in length
NEW = 0.4  # of a mean training: what a new trial is thought to take, many being cheaper and stopped early


def left_ns(state: State) -> int:
    """What the budget still buys, as of the last report."""
    return state.rate.affords_ns(state.budget.limit) - _spent_ns(state)


def finishing_ns(state: State, trial: TrialRecord) -> int:
    """What the trial takes to its last step, and to begin again where it does not run."""
    return _reaching_ns(state, trial, state.max_step)


def can_finish(state: State, trial: TrialRecord) -> bool:
    """Whether the money suffices to train this trial to its end, beside what runs and what the leader takes."""
    if not _keeps(state):
        return True
    leader = unfinished_leader(state)
    reserved = 0 if leader is None or leader is trial else finishing_ns(state, leader)
    committed = _committed_ns(state, trial, leader, to_end=is_due(state))
    return finishing_ns(state, trial) + reserved <= left_ns(state) - committed


def unfinished_leader(state: State) -> TrialRecord | None:
    """The best trial so far, if it can and should go on."""
    if state.leader is None or not _keeps(state):
        return None
    leader = state.trials[state.leader]
    waits_for_nothing = leader.number in state.passed or not leader.resumable
    return leader if leader.status in ("running", "parking", "parked") and not waits_for_nothing else None


def is_due(state: State) -> bool:
    """Whether what is left should finish what was begun: a new trial could not be trained to its end any more. Where not even
    the leader can be finished there is nothing to keep money for."""
    if not _keeps(state) or state.leader is None:
        return False
    leader = unfinished_leader(state)
    reserved = 0 if leader is None else finishing_ns(state, leader)
    if reserved > left_ns(state):
        return False
    new = _overhead_ns(state) + round(NEW * _step_ns(state) * (state.max_step or 0))
    return reserved + new > left_ns(state) - _committed_ns(state, leader)


def is_urgent(state: State) -> bool:
    """Whether even what runs beside the leader has to end at its next step."""
    leader = unfinished_leader(state)
    if leader is None:
        return False
    others = [state.trials[n] for n in state.active if n != leader.number]
    stopping_ns = sum(2 * _step_ns(state, trial) for trial in others)
    return 0 <= left_ns(state) - finishing_ns(state, leader) < stopping_ns


def _keeps(state: State) -> bool:
    automatic = state.spec.algorithm.scheduler == "auto" and state.budget.on_exhausted == "finish"
    return automatic and bool(state.rungs) and state.begun > 0


def _spent_ns(state: State) -> int:
    return state.rate.price.affords_ns(state.spent) if state.spent.micro_usd else 0


def _committed_ns(state: State, *but: TrialRecord | None, to_end: bool = False) -> int:
    """What the others that run take to where they were sent, or `to_end`."""
    running = (state.trials[n] for n in state.active)
    others = (trial for trial in running if trial.status == "running" and not any(trial is b for b in but))
    return sum(_reaching_ns(state, t, state.max_step if to_end else t.until) for t in others)


def _reaching_ns(state: State, trial: TrialRecord, step: int | None) -> int:
    steps = max(0, (step or trial.steps) - trial.steps)
    overhead = 0 if trial.status == "running" and trial.steps else _overhead_ns(state)
    return round(MARGIN * steps * _step_ns(state, trial)) + overhead


def _step_ns(state: State, trial: TrialRecord | None = None) -> int:
    """Of this trial so far, or of all."""
    if trial is not None and trial.steps and trial.trained_ns:
        return trial.trained_ns // trial.steps
    return state.trained_ns // max(1, state.steps)


def _overhead_ns(state: State) -> int:
    """What an attempt takes beside its training, on average."""
    return max(0, _spent_ns(state) - state.trained_ns) // max(1, state.begun)
