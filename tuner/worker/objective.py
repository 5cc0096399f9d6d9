"""Run an Optuna objective, `objective(trial)`, without a study.

The configuration is known before the objective starts, so a suggestion only looks up its value. A report is a step of the job.
`should_prune` returns True if the service stops or pauses the trial.
"""

import contextlib
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from numbers import Real
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)
from optuna.exceptions import TrialPruned
from optuna.trial import BaseTrial

from tuner.domain.space import same
from tuner.training.channel import Channel, MetricsRefused, StopTraining, plain_metrics
from tuner.worker.tune_compat import DEFAULT_METRIC

NO_STUDY = "trial.study is not available: the service, not a study, chooses configurations and decides which trials continue"


class NotInSearchSpace(LookupError):
    """The objective suggests a parameter that the job's search space does not have, or a range that lacks the job's value."""


class LookupTrial(BaseTrial):
    """A trial of Optuna that takes each suggested value from `find`, which subclasses define."""

    def __init__(self, number: int) -> None:
        self._number, self._began = number, datetime.now()
        self._params: dict[str, Any] = {}
        self._distributions: dict[str, BaseDistribution] = {}
        self._user_attrs: dict[str, Any] = {}
        self._constraints: dict[str, float] = {}

    @abstractmethod
    def find(self, name: str, distribution: BaseDistribution) -> Any:
        """Return the value to suggest for the parameter `name`."""

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        if name not in self._params:
            self._params[name] = self.find(name, distribution)
            self._distributions[name] = distribution
        check_distribution_compatibility(self._distributions[name], distribution)
        return self._params[name]

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return float(self._suggest(name, FloatDistribution(low, high, log=log, step=step)))

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        return self.suggest_float(name, low, high, step=q)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return int(self._suggest(name, IntDistribution(low, high, log=log, step=step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._suggest(name, CategoricalDistribution(choices))

    def set_user_attr(self, key: str, value: Any) -> None:
        self._user_attrs[key] = value

    def set_constraint(self, key: str, value: float) -> None:
        self._constraints[key] = value

    @property
    def params(self) -> dict[str, Any]:
        return dict(self._params)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        return dict(self._distributions)

    @property
    def user_attrs(self) -> dict[str, Any]:
        return dict(self._user_attrs)

    @property
    def constraints(self) -> dict[str, float]:
        return dict(self._constraints)

    @property
    def datetime_start(self) -> datetime | None:
        return self._began

    @property
    def number(self) -> int:
        return self._number

    @property
    def study(self) -> Any:
        raise AttributeError(NO_STUDY)


class ServiceTrial(LookupTrial):
    """A trial of Optuna that suggests the attempt's configuration and sends each report as one step.

    If a `SpotSafe` or an adapter of `tuner.training` reports the steps, `report` only checks the value and sends nothing.
    """

    def __init__(self, channel: Channel) -> None:
        digits = channel.begin.trial.rpartition("_")[2]
        super().__init__(int(digits) if digits.isdecimal() else 0)
        self._channel = channel
        self._values: Mapping[str, Any] = channel.begin.config
        self._metric = channel.begin.metric or DEFAULT_METRIC
        self._step = channel.begin.first_step
        self._reported: set[int] = set()
        self._is_over = False

    def find(self, name: str, distribution: BaseDistribution) -> Any:
        if name not in self._values:
            raise NotInSearchSpace(
                f"the job's search space has no parameter {name!r}; add it under search_space in the job file"
            )
        value = self._values[name]
        if isinstance(distribution, CategoricalDistribution):
            for choice in distribution.choices:
                if same(choice, value):
                    # Return the objective's own choice, because the value comes from JSON, which does not distinguish 1 from 1.0.
                    return choice
        elif _is_within(distribution, value):
            return value
        raise NotInSearchSpace(
            f"the job's search space gives {name!r} the value {value!r}, which is not in the objective's {distribution}; correct "
            f"{name!r} under search_space in the job file, or suggest it with the same range or choices"
        )

    def report(self, value: float, step: int) -> None:
        if step in self._reported:
            warnings.warn(f"the value is ignored, because step {step} is already reported", stacklevel=2)
            return
        self._reported.add(step)
        self._send(value)

    def should_prune(self) -> bool:
        return self._is_over

    def finish(self, value: Any) -> None:
        """Report the value that the objective returned as the only step. Do nothing if steps were reported before."""
        if self._reported or self._channel.is_used_by_run:
            return
        if isinstance(value, Sequence) and not isinstance(value, str):
            raise MetricsRefused(
                "the objective returned several values; return the one to optimize, and set the others with trial.set_user_attr"
            )
        self._send(value, last=True)

    def _send(self, value: Any, *, last: bool = False) -> None:
        number = _number(value)
        if self._channel.is_used_by_run:
            return
        if self._is_over:
            raise StopTraining(0)
        self._step += 1
        try:
            metrics = {**_metrics(self._user_attrs), self._metric: number}
            reply = self._channel.report(self._step, metrics, resumable=False, last=last)
            self._is_over = reply.stop
        except StopTraining:
            self._is_over = True


def run_objective(objective: Callable[..., Any], channel: Channel) -> None:
    """Run the objective with the attempt's configuration. Exceptions of user code propagate.

    Raises:
        StopTraining: The service stopped or paused the trial.
    """
    trial = ServiceTrial(channel)
    # A pruned trial ends with the steps that it reported, whether the service or the objective itself decided to prune it.
    with contextlib.suppress(TrialPruned):
        trial.finish(objective(trial))
    if trial.should_prune():
        raise StopTraining(0)


def _is_within(distribution: BaseDistribution, value: Any) -> bool:
    """Return whether a distribution of numbers can suggest this value. Return False for other distributions and values."""
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        return False
    if not isinstance(value, float | int) or isinstance(value, bool):
        return False
    if not distribution.low <= value <= distribution.high:
        return False
    if distribution.step is None:
        return True
    steps = (value - distribution.low) / distribution.step
    return abs(steps - round(steps)) < 1e-8  # Optuna's own tolerance, because 0.3 / 0.1 is less than 3


def _number(value: Any) -> float:
    """Return a reported value as a number. Raise MetricsRefused if it is not a number; a study of Optuna refuses it too."""
    plain = plain_metrics({"value": value})["value"]
    if not isinstance(plain, Real) or isinstance(plain, bool):
        raise MetricsRefused(f"the objective's value is {value!r}; report and return numbers")
    return float(plain)


def _metrics(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user attributes that are metrics: numbers, text, booleans and None."""
    kept: dict[str, Any] = {}
    for name, value in attributes.items():
        try:
            kept |= plain_metrics({name: value})
        except MetricsRefused:
            continue
    return kept
