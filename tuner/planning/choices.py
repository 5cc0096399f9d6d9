"""Choose the checkpoint interval, the first rung, the reduction factor and the concurrency of a planned job, with a reason for each."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from tuner.domain.checkpointing import LEAST_STALL_NS, Hazard, InterruptionRisk, SaveTimes, steps_between
from tuner.domain.job import JobSpec
from tuner.domain.time import NS, duration_text
from tuner.planning.alternatives import FEW_RUNS, SURE_ENOUGH, in_time
from tuner.planning.paces import Paces
from tuner.planning.plan import PlannedCheckpoints, SettingChoice
from tuner.planning.ranks import spearman
from tuner.planning.simulations import Setting, Simulate, SimulatedOutcome, mean
from tuner.tuning.rungs import ladder, rungs_of

FACTORS = (2, 3, 4)
# A step can be the first rung if the ranks of trials at that step and at the last step have at least this correlation.
PREDICTS = 0.6
TRIALS_TO_RANK = 8
STALL_PART = 10


def checkpoints(setting: Setting, requested: JobSpec) -> PlannedCheckpoints:
    """Choose the checkpoint interval of a planned job, with the rule that real workers apply (`tuner.domain.checkpointing`).

    The interval is in steps, converted to seconds by the step time expected of an average configuration. It is at most the last step of a trial.

    Args:
        setting: The job and the machines that are simulated.
        requested: The requested job.
    """
    step_ns = max(1, round(setting.paces.evidence.step_ns / setting.speed))
    save_ns = setting.paces.evidence.delays.save_ns
    saving = SaveTimes(max(LEAST_STALL_NS, save_ns // STALL_PART), save_ns)
    life = setting.spot
    risk = InterruptionRisk()
    if life is not None and life.mean_ns is not None:
        risk = InterruptionRisk(preemption=Hazard(life.mean_ns), notice_ns=life.notice_ns)
    steps = steps_between(step_ns=step_ns, saving=saving, risk=risk)
    lost = "is preempted or crashes" if life is not None else "crashes"
    why = (
        f"a save stalls training for {duration_text(saving.stall_ns / NS)}, and a machine {lost} every "
        f"{duration_text(risk.mean_ns / NS)} on average (Young 1974, Daly 2006)"
    )
    every = min(steps, requested.fidelity.max or setting.spec.fidelity.max or steps)
    return PlannedCheckpoints(every, every * step_ns / NS, why)


def made(
    requested: JobSpec,
    setting: Setting,
    planned: PlannedCheckpoints,
    limit_ns: int | None,
    runs: Sequence[SimulatedOutcome],
    room: int | None,
    simulate: Simulate,
) -> tuple[SettingChoice, ...]:
    """Return the choices of the checkpoint interval, the first rung, the reduction factor and the concurrency.

    Args:
        requested: The requested job.
        setting: The job and the machines that were simulated.
        planned: The checkpoint interval that `checkpoints` chose.
        limit_ns: The time within which the job should finish. None means no limit.
        runs: The outcomes of simulations of `setting`.
        room: How many trials the machines have room for at once. None means any number.
        simulate: Runs one simulation. It is used to try other values of a choice.
    """
    interval = requested.checkpoint.interval_ns
    current = None if interval is None else f"{interval / NS:g}s"
    return (
        SettingChoice("checkpoint_interval", current, f"{planned.every_seconds:g}s", planned.why),
        *_ladder(requested, setting, runs, simulate),
        _concurrency(requested, setting, limit_ns, runs, room, simulate),
    )


def _ladder(
    requested: JobSpec, setting: Setting, runs: Sequence[SimulatedOutcome], simulate: Simulate
) -> Iterator[SettingChoice]:
    """Yield the choices of the first rung and of the reduction factor. Yield nothing if the job has no rungs."""
    spec = replace(requested, fidelity=setting.spec.fidelity)
    if not rungs_of(spec):
        return
    climbed = ladder(spec)
    if requested.algorithm.scheduler == "auto":
        why = "the scheduler auto chooses its own rungs, not below the requested fidelity.min"
        yield SettingChoice("fidelity_min", str(requested.fidelity.min), str(climbed.min), why)
        yield SettingChoice("reduction_factor", None, str(climbed.reduction_factor), why)
        return
    yield _first_rung(requested, setting.paces)
    yield _reduction_factor(requested, setting, runs, simulate)


def _first_rung(requested: JobSpec, paces: Paces) -> SettingChoice:
    current, last = str(requested.fidelity.min), requested.fidelity.max or paces.steps
    correlations = {step: rank_correlation(paces, step, last) for step in requested.fidelity.rungs()}
    known = {step: correlation for step, correlation in correlations.items() if correlation is not None}
    if not known:
        why = "as requested: without learning curves, the first step at which trials can be compared is not known"
        return SettingChoice("fidelity_min", current, current, why)
    chosen = next((step for step, correlation in known.items() if correlation >= PREDICTS), max(known))
    why = f"the rank correlation (Spearman) with the last step is {known[chosen]:.2f} at this step"
    if chosen != requested.fidelity.min and requested.fidelity.min in known:
        why += f", but only {known[requested.fidelity.min]:.2f} at step {requested.fidelity.min}"
    return SettingChoice("fidelity_min", current, str(chosen), why)


def rank_correlation(paces: Paces, step: int, last: int) -> float | None:
    """Return Spearman's rank correlation of the scores at `step` with the scores at `last`.

    It is computed over the trials of `paces` that first reported at or before `step` and reached at least half of `last`. Return None if
    there are fewer than TRIALS_TO_RANK such trials. Return 0 if their scores at one of the two steps are all equal.
    """
    far = [t for t in paces.evidence.curves if t.curve[-1][0] * 2 >= last and t.curve[0][0] <= step]
    if len(far) < TRIALS_TO_RANK:
        return None
    return (
        spearman([paces.place(trial, step) for trial in far], [paces.place(trial, last) for trial in far])
        or 0.0
    )


def _reduction_factor(
    requested: JobSpec, setting: Setting, runs: Sequence[SimulatedOutcome], simulate: Simulate
) -> SettingChoice:
    current = str(requested.fidelity.reduction_factor)
    if not setting.paces.knows_curves:
        why = "as requested: without learning curves, other factors cannot be compared"
        return SettingChoice("reduction_factor", current, current, why)
    outcomes = {requested.fidelity.reduction_factor: runs}
    for factor in FACTORS:
        if factor not in outcomes:
            fidelity = replace(setting.spec.fidelity, reduction_factor=factor)
            other = replace(setting, spec=replace(setting.spec, fidelity=fidelity))
            outcomes[factor] = other.runs(simulate, FEW_RUNS)
    means = {factor: _mean_best(factor_runs) for factor, factor_runs in outcomes.items()}
    best, (height, error) = max(means.items(), key=lambda pair: pair[1][0])
    mine, mine_error = means[requested.fidelity.reduction_factor]
    if not height - mine > math.hypot(error, mine_error):  # also if neither factor has a score
        return SettingChoice(
            "reduction_factor", current, current, "no other factor gives a significantly better result"
        )
    better, present = requested.objective.score(height), requested.objective.score(mine)
    gain = (
        f"expected best {requested.objective.metric} {better:.4g} instead of {present:.4g}, from {len(outcomes[best])} simulated runs "
        f"and {len(runs)} with factor {current}"
    )
    return SettingChoice("reduction_factor", current, str(best), gain)


def _mean_best(runs: Sequence[SimulatedOutcome]) -> tuple[float, float]:
    """Return the mean of the runs' best scores, and the standard error of that mean.

    Without any score, the mean is minus infinity. With fewer than two scores, the standard error is infinite.
    """
    known = [run.best for run in runs if run.best is not None]
    if len(known) < 2:
        return (known[0] if known else -math.inf), math.inf
    return fmean(known), stdev(known) / math.sqrt(len(known))


def _concurrency(
    requested: JobSpec,
    setting: Setting,
    limit_ns: int | None,
    runs: Sequence[SimulatedOutcome],
    room: int | None,
    simulate: Simulate,
) -> SettingChoice:
    """Choose the smallest concurrency with which the job finishes in time: that of `setting`, half of it, or twice as much.

    Without a time limit, keep the concurrency of `setting`. If none of the three finishes in time, choose the largest. `room` is an
    upper bound for the doubled concurrency.
    """
    current = requested.resources.max_concurrent_trials
    wanted = None if current is None else str(current)
    now = setting.concurrency
    if limit_ns is None:
        after = duration_text(mean([run.elapsed_ns for run in runs]) / NS)
        why = f"no deadline: as many trials as the job requests and the machines have room for; the job ends after {after}"
        return SettingChoice("concurrency", wanted, str(now), why)
    tried = sorted({max(1, now // 2), now, 2 * now if room is None else min(room, 2 * now)})
    for count in tried:
        simulated_runs = runs if count == now else replace(setting, concurrency=count).runs(simulate, 5)
        chance = in_time(simulated_runs, limit_ns)
        if chance is not None and chance.chance >= SURE_ENOUGH:
            why = f"the lowest simulated concurrency that finishes in time, in {chance.met} of {chance.runs} runs"
            return SettingChoice("concurrency", wanted, str(count), why)
    return SettingChoice(
        "concurrency",
        wanted,
        str(max(tried)),
        "no simulated concurrency finishes in time; this is the highest",
    )
