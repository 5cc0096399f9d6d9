"""The scaling efficiency of a trainable, measured by jobs whose trials took different numbers of GPUs or processes.

Let a step take t with d GPUs, and u with k GPUs, where d is the smallest number. The efficiency with k GPUs is d·t/(k·u). A step
must do the same work with each number of GPUs, as one epoch of the same data does.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean, stdev

import numpy as np

from tuner.domain.job import Resources
from tuner.domain.space import Config, Space
from tuner.planning.pace_evidence import SeenTrial, points_of, ridge

TRIALS_MIN = 3  # with fewer trials of a size, the error of a ratio of step times cannot be estimated
ERROR_MAX = 0.1  # a ratio of step times with a larger relative standard error is not used
SLOPES_ERROR = 0.1  # assumed relative error of a regression's correction for parameters
PRECISION = 10**6


def devices(resources: Resources) -> int:
    """Return the number of GPUs of a trial, or of its processes if it has no whole GPU."""
    return int(resources.all_gpus) if resources.gpus >= 1 else resources.processes * resources.nodes


def named(resources: Resources, count: int | None = None) -> str:
    """Return a number of GPUs or processes as a phrase, such as "4 GPUs". If `count` is None, use the number that a trial has."""
    count = devices(resources) if count is None else count
    noun = ("GPU" if count == 1 else "GPUs") if resources.gpus >= 1 else "process" + "es" * (count != 1)
    return f"{count} {noun}"


def differ_in_number(a: Resources, b: Resources) -> bool:
    """Return whether two sizes of trials differ only in the number of their GPUs, or only in the number of their processes.

    Processes must have equally many CPUs in both sizes. For trials with whole GPUs, the CPUs are not compared.
    """
    if a.gpus >= 1 and b.gpus >= 1:
        return True
    return a.gpus == b.gpus and math.isclose(a.cpus / a.processes, b.cpus / b.processes)


@dataclass(frozen=True, slots=True)
class SizedTrials:
    """Trials of earlier jobs that all had the resources `resources`."""

    resources: Resources
    trials: tuple[SeenTrial, ...]
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """Resources of trials (a size), and the step time with them, relative to the step time of the smallest size."""

    resources: Resources
    step_ratio: Fraction  #: The time of a step, divided by the time of a step of the smallest size.
    efficiency: Fraction  #: Relative to the smallest size, whose efficiency is 1.
    error: float  #: The relative standard error of both figures.
    trials: int
    jobs: tuple[str, ...]

    @property
    def devices(self) -> int:
        return devices(self.resources)


def measured_sizes(groups: Sequence[SizedTrials], space: Space) -> tuple[MeasuredSize, ...]:
    """Measure the scaling efficiency of each size of trials by comparing its step times with the step times of the smallest size.

    Args:
        groups: The trials, one group per size.
        space: The search space of the trials. It is used to correct for differences between their configurations.

    Returns:
        The sizes in ascending order. A size is left out if it has fewer than TRIALS_MIN trials, or if the relative error of its step time
        is above ERROR_MAX. Empty if fewer than two sizes remain.
    """
    ordered = sorted(
        (group for group in groups if len(group.trials) >= TRIALS_MIN),
        key=lambda group: (devices(group.resources), group.resources.nodes),
    )
    if not ordered:
        return ()
    least, *others = ordered
    sizes = [MeasuredSize(least.resources, Fraction(1), Fraction(1), 0.0, len(least.trials), least.jobs)]
    for group in others:
        compared = _log_ratio(least.trials, group.trials, space)
        if compared is None or compared[1] > ERROR_MAX:
            continue
        ratio = Fraction(math.exp(compared[0])).limit_denominator(PRECISION)
        efficiency = Fraction(devices(least.resources), devices(group.resources)) / ratio
        count = len(group.trials)
        sizes.append(MeasuredSize(group.resources, ratio, efficiency, compared[1], count, group.jobs))
    return tuple(sizes) if len(sizes) > 1 else ()


def _log_ratio(
    least: Sequence[SeenTrial], others: Sequence[SeenTrial], space: Space
) -> tuple[float, float] | None:
    """Return the mean of log(step time of `others` / step time of `least`), and its standard error.

    `least` are the trials of the smallest size. Both sizes are compared over the same part of the training: over later steps if enough
    trials of both sizes have them, otherwise over the first steps, otherwise over all steps. Trials of the same configuration are compared
    in pairs. If there are too few pairs, the step times are corrected for the parameters by a regression over both sizes. Return None if a
    size has too few trials.
    """
    for part in ("later_ns", "early_ns", "step_ns"):
        a, b = (
            [(trial.config, math.log(ns)) for trial in trials if (ns := getattr(trial, part))]
            for trials in (least, others)
        )
        if min(len(a), len(b)) >= TRIALS_MIN:
            return _compared(a, b, space)
    return None


ConfigPaces = Sequence[tuple[Config, float]]
"""Configurations, with the logarithms of their step times."""


def _compared(a: ConfigPaces, b: ConfigPaces, space: Space) -> tuple[float, float]:
    by_config = {json.dumps(config, sort_keys=True): pace for config, pace in a}
    keys = [(json.dumps(config, sort_keys=True), pace) for config, pace in b]
    pairs = [pace - by_config[key] for key, pace in keys if key in by_config]
    if len(pairs) >= TRIALS_MIN:
        return fmean(pairs), stdev(pairs) / math.sqrt(len(pairs))
    paces = [np.array([pace for _, pace in paced]) for paced in (a, b)]
    offset = float(paces[1].mean() - paces[0].mean())
    error = math.hypot(*(float(each.std(ddof=1)) / math.sqrt(len(each)) for each in paces))
    points = [points_of(space, [config for config, _ in paced]) for paced in (a, b)]
    if points[0] is None or points[1] is None:
        return offset, error
    # The trials of each size are centred at the mean of that size, so that the regression does not attribute the difference between the
    # sizes to a parameter.
    centred = np.concatenate([each - each.mean(axis=0) for each in points if each is not None])
    fit = ridge(centred, np.concatenate([each - each.mean() for each in paces]))
    if fit is None:
        return offset, error
    moved = float((points[1].mean(axis=0) - points[0].mean(axis=0)) @ fit.slopes)
    # Use the error of predicting each trial from all others, because the error of the fit itself would be too small. The correction for the
    # parameters has an error of its own, because the penalty makes the slopes too small.
    return offset - moved, math.hypot(fit.spread * math.sqrt(1 / len(a) + 1 / len(b)), SLOPES_ERROR * moved)


def efficiency_at(sizes: Sequence[MeasuredSize], count: int, nodes: int = 1) -> Fraction | None:
    """Return the efficiency with `count` devices on `nodes` nodes, relative to the smallest size.

    If no size with `count` devices was measured, the efficiency is computed from the measured size with the nearest number of devices. A
    size on one node is preferred if `nodes` is 1, and a size on several nodes otherwise. The inverse of the efficiency is assumed to grow
    linearly with the number of devices, as it does if a fixed part of each step cannot be divided.

    Return None if fewer than two sizes were measured.
    """
    if len(sizes) < 2:
        return None
    least, *others = sizes
    if (count, nodes) == (least.devices, least.resources.nodes):
        return Fraction(1)
    alike = [size for size in others if (size.resources.nodes > 1) == (nodes > 1)] or others
    near = min(
        alike, key=lambda size: (abs(math.log(size.devices / count)), abs(size.resources.nodes - nodes))
    )
    if count == near.devices:
        return near.efficiency
    if count <= least.devices:
        return Fraction(1)
    lost = max(Fraction(0), 1 / near.efficiency - 1) / max(1, near.devices - least.devices)
    return 1 / (1 + lost * (count - least.devices))
