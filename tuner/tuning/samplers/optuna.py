"""Optuna's samplers TPE, GP, CMA-ES and QMC, used through Optuna's ask-and-tell interface.

Optuna has no paused trials: a trial is either running, so that samplers do not learn from it, or finished. Therefore the study's
storage presents every trial that waits at a rung as *pruned*, with the values of the rungs that it reached. The samplers rank
such trials by step and then by value. When the trial continues, it is presented with more values. GP is an exception: it learns only from
trials that were trained to the last step.
"""

import copy
import heapq
import math
import warnings
from collections.abc import Container, Mapping, Sequence
from typing import Any, cast

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, QMCSampler, TPESampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from tuner.domain.job import SamplerName
from tuner.domain.records import PastTrial
from tuner.domain.space import Categorical, Config, Float, Int, Parameter, Space, Value, steps_of
from tuner.tuning.samplers.base import number_rng
from tuner.tuning.samplers.simple import RandomSampler

optuna.logging.set_verbosity(optuna.logging.ERROR)
STARTUP_TRIALS = 10
# TPE learns only from this many of the best and of the newest trials. A suggestion takes 25 ms with 2,000 trials, and more time with more
# trials. Further trials would matter little: TPE's model of good configurations uses at most 25 trials, and its model of bad ones gives old
# trials less weight.
BEST_TRIALS, NEWEST_TRIALS = 100, 900
# The key under which `Trial.set_constraint` stores a violation, and under which Optuna's samplers look for it.
VIOLATION = "constraints:violation"


# The key by which TPE separates good trials from others: (-violation, has ended, step, score). The largest rank is the best.
Rank = tuple[float, bool, int, float]


class RungStorage(InMemoryStorage):
    """A storage that presents unfinished trials with rung values as pruned.

    If more than `BEST_TRIALS + NEWEST_TRIALS` trials are ranked, it presents only the best and the newest of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[int, FrozenTrial] = {}
        self._ranks: dict[int, Rank] = {}

    def rank(self, number: int, rank: Rank) -> None:
        """Set how trial `number` of the study compares with other trials. Trials without a rank are never among the best."""
        self._ranks[number] = rank

    def set_params(self, trial_id: int, params: Mapping[str, tuple[float, BaseDistribution]]) -> None:
        """Set the parameters of a trial to these, in Optuna's internal form, and remove all others."""
        with self._lock:
            trial = copy.copy(self._get_trial(trial_id))
            trial.params, trial.distributions = {}, {}
            self._set_trial(trial_id, trial)
            for name, (value, distribution) in params.items():
                self.set_trial_param(trial_id, name, value, distribution)

    def end(self, number: int, *, failed: bool) -> None:
        """Record that trial `number` of the study has ended. A failed trial loses its rank, which `rank` set."""
        rank = self._ranks.pop(number, None)
        if rank is not None and not failed:
            self._ranks[number] = (rank[0], True, *rank[2:])

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        # Optuna looks for waiting trials before each suggestion. No trial of this study ever waits.
        if states == (TrialState.WAITING,):
            return []
        trials = super().get_all_trials(study_id, deepcopy=deepcopy)
        if len(self._ranks) > BEST_TRIALS + NEWEST_TRIALS:
            best = heapq.nlargest(BEST_TRIALS, self._ranks, key=self._ranks.__getitem__)
            first_new = len(trials) - NEWEST_TRIALS
            trials = [
                *(trials[number] for number in sorted(best) if number < first_new),
                *trials[first_new:],
            ]
        shown = [self._show(trial) for trial in trials]
        return shown if states is None else [trial for trial in shown if trial.state in states]

    def _show(self, trial: FrozenTrial) -> FrozenTrial:
        if trial.state != TrialState.RUNNING or not trial.intermediate_values:
            return trial
        known = self._shown.get(trial.number)
        if known is None or len(known.intermediate_values) != len(trial.intermediate_values):
            known = copy.copy(trial)
            known.intermediate_values = dict(trial.intermediate_values)
            known.state = TrialState.PRUNED
            known.value = trial.intermediate_values[max(trial.intermediate_values)]
            self._shown[trial.number] = known
        return known


class WholeSpaceTPE(TPESampler):
    """Optuna's multivariate TPE for a space without conditions, in which each trial has all parameters.

    Its suggestions are those of `TPESampler(multivariate=True, group=True)`. That sampler first looks at the parameters of all trials to
    find groups of parameters that occur together, which takes a fifth of its time. Here all of them are one group.

    Args:
        space: The distributions of all parameters.
        options: Passed to `TPESampler`.
    """

    def __init__(self, space: Mapping[str, BaseDistribution], **options: Any) -> None:
        super().__init__(multivariate=True, **options)
        self._space = {name: space[name] for name in sorted(space) if not space[name].single()}

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._space


class OptunaSampler:
    """Suggests configurations with one of Optuna's samplers and a study in memory.

    Each suggestion has its own seed, so that the nth suggestion is the same after any restart. TPE and GP learn from `history`, whose
    trials count as complete if they reached `max_step`. If `is_constrained` is set, they also learn from violations of constraints. CMA-ES
    and QMC ignore both. TPE learns from at most 1,000 trials: the best and the newest.

    In a small finite space, a proposal that was suggested before is replaced by a random configuration that was not. `RandomSampler` keeps
    count of them. The study's trial gets the parameters of the replacement.
    """

    def __init__(
        self,
        name: SamplerName,
        space: Space,
        seed: int,
        history: Sequence[PastTrial] = (),
        max_step: int | None = None,
        *,
        is_constrained: bool = False,
    ) -> None:
        self._name, self._space, self._seed = name, space, seed
        self._is_constrained = is_constrained
        self._order = space.order
        self._random = RandomSampler(space, seed, history)
        self._distributions = {name: _distribution(space.parameters[name]) for name in self._order}
        self._has_conditions = any(parameter.when for parameter in space.parameters.values())
        self._storage = RungStorage()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study = optuna.create_study(
                storage=self._storage, direction="maximize", sampler=self._sampler(0)
            )
        past = [trial for trial in history if name in ("tpe", "gp") and trial.curve and not trial.failed]
        self._study.add_trials([self._past_trial(trial, max_step) for trial in past])
        self._before = len(past)
        if name == "tpe":
            for number, trial in enumerate(past):
                step, score, _ = trial.curve[-1]
                has_ended = max_step is None or step >= max_step
                self._storage.rank(number, (-trial.violation, has_ended, step, score))
        self._trials: dict[int, optuna.Trial] = {}
        self._last: dict[int, tuple[int, float]] = {}

    def suggest(self, number: int, step_s: float = math.inf) -> Config | None:
        if self._random.is_exhausted:
            return None
        proposal = self._proposal(number)
        if self._random.is_new(proposal):
            self._random.adopt(number, proposal)
            return proposal
        config = self._random.suggest(number)
        self.adopt(number, config)
        return config

    def _proposal(self, number: int) -> Config:
        """Ask the study for a trial, and return its configuration."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A QMC sequence keeps its sampler, because all its points must be scrambled with the same seed.
            if self._name != "qmc":
                self._study.sampler = self._sampler(number)
            trial = self._study.ask()
            assert trial.number == self._before + number, f"suggestion {number} was requested out of order"
            self._trials[number] = trial
            config: Config = {}
            for name in self._order:
                if self._space.active(name, config):
                    config[name] = self._ask(trial, name)
        return config

    def adopt(self, number: int, config: Config | None) -> None:
        """Set the actual configuration of a trial.

        CMA-ES and QMC store their progress in the trials that they propose. If one of them has not proposed this trial, for
        example after a restart, this method first asks it to. The other samplers need only the parameters.
        """
        if config is None:
            return
        self._random.adopt(number, config)
        if number not in self._trials:
            if self._name in ("cmaes", "qmc"):
                self._proposal(number)
            else:
                self._trials[number] = self._study.ask()
        trial = self._trials[number]
        assert trial.number == self._before + number, f"trial {number} was adopted out of order"
        params = dict[str, tuple[float, BaseDistribution]]()
        for name, value in config.items():
            distribution, known = self._distributions[name], _to_optuna(self._space.parameters[name], value)
            params[name] = distribution.to_internal_repr(known), distribution
        self._storage.set_params(trial._trial_id, params)

    def tell(
        self,
        number: int,
        step: int,
        score: float,
        trained_ns: int,
        *,
        at_rung: bool,
        violation: float = 0.0,
    ) -> None:
        if not at_rung:
            return
        trial = self._trials[number]
        if self._is_constrained:
            self._storage.set_trial_system_attr(trial._trial_id, VIOLATION, violation)
        if step not in self._storage.get_trial(trial._trial_id).intermediate_values:
            self._storage.set_trial_intermediate_value(trial._trial_id, step, score)
        self._last[number] = (step, score)
        if self._name == "tpe":
            self._storage.rank(trial.number, (-violation, False, step, score))

    def finish(self, number: int, *, failed: bool) -> None:
        trial = self._trials[number]
        if self._storage.get_trial(trial._trial_id).state.is_finished():
            return
        if number in self._last and not failed:
            self._study.tell(trial.number, self._last[number][1])
            self._storage.end(trial.number, failed=False)
        else:
            self._study.tell(trial.number, state=TrialState.FAIL)
            self._storage.end(trial.number, failed=True)

    def forecast(self) -> None:
        return None

    def _past_trial(self, trial: PastTrial, max_step: int | None) -> FrozenTrial:
        step, score, _ = trial.curve[-1]
        return optuna.create_trial(
            state=TrialState.PRUNED if max_step is not None and step < max_step else TrialState.COMPLETE,
            value=score,
            params={
                name: _to_optuna(self._space.parameters[name], value) for name, value in trial.config.items()
            },
            distributions={name: self._distributions[name] for name in trial.config},
            intermediate_values={step: score},
            system_attrs={VIOLATION: trial.violation} if self._is_constrained else {},
        )

    def _ask(self, trial: optuna.Trial, name: str) -> Value:
        match self._space.parameters[name]:
            case Float() | Int() as stepped if (count := steps_of(stepped)) is not None:
                return stepped.nth(trial.suggest_int(name, 0, count - 1))
            case Float(low, high, log):
                return trial.suggest_float(name, low, high, log=log)
            case Int(low, high, log):
                return trial.suggest_int(name, low, high, log=log)
            case Categorical(choices):
                return trial.suggest_categorical(name, cast(Sequence[CategoricalChoiceType], choices))

    def _sampler(self, number: int) -> BaseSampler:
        seed = number_rng(self._seed, number).randrange(2**31)
        match self._name:
            case "gp":
                independent = TPESampler(seed=seed)
                return GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS, independent_sampler=independent)
            case "cmaes":
                return CmaEsSampler(
                    seed=seed,
                    n_startup_trials=2,
                    consider_pruned_trials=True,
                    warn_independent_sampling=False,
                )
            case "qmc":
                whole_job = number_rng(self._seed, -1).randrange(2**31)
                return QMCSampler(
                    seed=whole_job,
                    scramble=True,
                    warn_asynchronous_seeding=False,
                    warn_independent_sampling=False,
                )
            case _:
                options: dict[str, Any] = {
                    "seed": seed,
                    "n_startup_trials": STARTUP_TRIALS,
                    "constant_liar": True,
                }
                if self._has_conditions:
                    return TPESampler(multivariate=True, group=True, **options)
                return WholeSpaceTPE(self._distributions, **options)


def _to_optuna(parameter: Parameter, value: Value) -> Value:
    """Convert a value to the form that the study uses. A value of a parameter with a step becomes its index, which is exact."""
    if isinstance(parameter, Categorical) or parameter.step is None:
        return value
    return parameter.index(float(str(value)))


def _distribution(parameter: Parameter) -> BaseDistribution:
    match parameter:
        case Float() | Int() if (count := steps_of(parameter)) is not None:
            return IntDistribution(0, count - 1)
        case Float(low, high, log):
            return FloatDistribution(low, high, log=log)
        case Int(low, high, log):
            return IntDistribution(low, high, log=log)
        case Categorical(choices):
            return CategoricalDistribution(cast(Sequence[CategoricalChoiceType], choices))
