"""Record the search space of an Optuna objective, by running it with a trial that notes what is suggested.

The objective runs several times until its first report, or its end. Each run changes one parameter that has few values
(categorical, or a short range of integers). This finds parameters that are suggested only for some values of another parameter; they
get a condition (`when`). Then runs with random configurations of the recorded space check that the objective suggests exactly the
parameters of the space.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from random import Random
from types import FrameType
from typing import Any, cast

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import TrialPruned

from tuner.domain.space import Categorical, Config, Float, Int, Parameter, Space, SpaceRefused, Value, same
from tuner.training import channel
from tuner.worker.objective import LookupTrial

LIMIT_S = 60.0  # for all runs together
MAX_RUNS = 200
CHECKS = 10  # runs with random configurations
FEW = 10  # an integer parameter with at most this many values is tried with each of them
INSTEAD = "describe the parameters under search_space in the job file"

Objective = Callable[[Any], Any]


class _SpaceRecorded(BaseException):
    """Ends a run at its first report. Objectives do not catch it, because it is not an Exception."""


class _TimeIsUp(BaseException):
    """Ends a run when the time of all runs is used up."""


class _EndsAtReport:
    """Stands in for a connection to a supervisor. It ends the run when user code waits for the first reply."""

    def __init__(self) -> None:
        self._begin = [channel.begin_message(channel.BeginMessage("trial_0", 1, "", {}, ""))]

    def recv_bytes(self) -> bytes:
        if not self._begin:
            raise _SpaceRecorded
        return self._begin.pop()

    def send_bytes(self, data: bytes) -> None:
        pass


class RecordingTrial(LookupTrial):
    """A trial that records the parameters that the objective suggests.

    Args:
        values: The values to suggest. A parameter without a valid value here gets its first choice or its lower bound.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        super().__init__(0)
        self._values = values
        self.parameters: dict[str, Parameter] = {}

    def find(self, name: str, distribution: BaseDistribution) -> Any:
        parameter = self.parameters[name] = _parameter(name, distribution)
        if name in self._values and parameter.contains(self._values[name]):
            return self._values[name]
        return parameter.choices[0] if isinstance(parameter, Categorical) else parameter.low

    def report(self, value: float, step: int) -> None:
        raise _SpaceRecorded

    def should_prune(self) -> bool:
        raise _SpaceRecorded


def recorded_space(objective: Objective, *, limit_s: float = LIMIT_S) -> Space:
    """Record and return the search space of an objective, within `limit_s` seconds.

    Call it in the main thread, because the signal SIGALRM ends it when the time is over.

    Raises:
        SpaceRefused: The space cannot be recorded. `code` says why, and the text asks for `search_space` in the job file.
    """
    runs = _Runs(objective)
    try:
        with _alarm(limit_s):
            return runs.recorded()
    except _TimeIsUp:
        raise SpaceRefused(
            "too_slow",
            f"the objective is too slow: only {len(runs.made)} runs of the objective were completed in {limit_s:.0f} s, too few to find all "
            f"parameters, although each run ends at the first report; {INSTEAD}",
        ) from None


def space_fields(space: Space) -> dict[str, Any]:
    """Return a search space in the form of `search_space` in a job file."""

    def fields(parameter: Parameter) -> dict[str, Any]:
        when = {name: list(values) for name, values in parameter.when.items()}
        more: dict[str, Any] = {"when": when} if when else {}
        if isinstance(parameter, Categorical):
            return {"type": "categorical", "choices": list(parameter.choices), **more}
        kind = "int" if isinstance(parameter.low, int) else "float"
        more |= {"log": True} if parameter.log else {}
        more |= {"step": parameter.step} if parameter.step is not None else {}
        return {"type": kind, "low": parameter.low, "high": parameter.high, **more}

    return {name: fields(parameter) for name, parameter in space.parameters.items()}


@dataclass(frozen=True)
class _Run:
    """The parameters that the objective suggested in one run, in order, and the values that it got."""

    parameters: Mapping[str, Parameter]
    values: Config


@dataclass
class _Runs:
    objective: Objective
    made: list[_Run] = field(default_factory=list)
    _sets: set[frozenset[str]] = field(default_factory=set)  # the sets of parameters that occurred together

    def recorded(self) -> Space:
        """Return the search space that follows from the parameters suggested in the recorded runs of the objective.

        The space is checked by running the objective with random configurations from it. If such a run suggests a set of parameters that
        no run suggested before, further runs change one of its parameters at a time. Then the checks begin again.
        """
        self._explore({})
        while True:
            space = self._space()
            known = len(self._sets)
            for number in range(CHECKS):
                self._explore(space.sample(Random(f"check/{number}")))
                if len(self._sets) > known:
                    break
                _compare(space, self.made[-1])
            else:
                return space

    def _explore(self, values: Mapping[str, Value]) -> None:
        """Run the objective with these values.

        Whenever a run suggests a new set of parameters, run the objective again with one parameter changed at a time, to each of its
        values. A parameter with many possible values is not changed.
        """
        queue = [values]
        for chosen in queue:  # the list grows during the loop
            if any(_is_part(run.values, chosen) for run in self.made):
                continue  # an earlier run used these values and suggested the same parameters
            known = len(self._sets)
            run = self._run(chosen)
            if len(self._sets) > known:
                queue += [
                    {**run.values, name: value}
                    for name, parameter in run.parameters.items()
                    for value in _few_values(parameter)
                ]

    def _run(self, values: Mapping[str, Value]) -> _Run:
        if len(self.made) >= MAX_RUNS:
            raise SpaceRefused(
                "too_many_conditions",
                f"the parameters that the objective suggests depend on too many values of other parameters: {MAX_RUNS} runs were not enough "
                f"to try all these values; {INSTEAD}",
            )
        trial = RecordingTrial(values)
        channel.open_channel(cast(Connection, _EndsAtReport()))  # for a SpotSafe in the objective
        try:
            self.objective(trial)
        except (_SpaceRecorded, TrialPruned, channel.StopTraining):  # StopTraining is a SystemExit
            pass
        except SpaceRefused:
            raise
        except (Exception, SystemExit) as error:
            raise SpaceRefused(
                "objective_raised",
                f"the objective raised {type(error).__name__}: {error} with {trial.params}; correct the objective, or {INSTEAD}",
            ) from error
        finally:
            channel.close_channel()
        run = _Run(dict(trial.parameters), {name: trial.params[name] for name in trial.parameters})
        for before in self.made:
            for name in before.parameters.keys() & run.parameters.keys():
                if before.parameters[name] != run.parameters[name]:
                    raise SpaceRefused(
                        "changing_range",
                        f"the range or the choices of {name!r} depend on other parameters; suggest it with the same range or "
                        f"choices in every trial, or {INSTEAD}",
                    )
        self.made.append(run)
        self._sets.add(frozenset(run.parameters))
        return run

    def _space(self) -> Space:
        """Return the space that the runs so far show. Raise SpaceRefused if conditions cannot express when a parameter is suggested."""
        every = {name: parameter for run in self.made for name, parameter in run.parameters.items()}
        if not every:
            raise SpaceRefused(
                "no_parameters",
                f"the objective suggests no parameters before its first report or its end; {INSTEAD}",
            )
        space = Space({name: replace(parameter, when=self._when(name)) for name, parameter in every.items()})
        for run in self.made:
            _compare(space, run)
        return space

    def _when(self, name: str) -> dict[str, tuple[Value, ...]]:
        """Return the condition under which the objective suggests the parameter `name`.

        The condition maps the name of each deciding parameter to those of its values with which `name` is suggested. A parameter is
        deciding if two runs differ only in its value, and only one of them suggested `name`.
        """
        using = [run for run in self.made if name in run.parameters]
        lacking = [run for run in self.made if name not in run.parameters]
        when: dict[str, tuple[Value, ...]] = {}
        for run in using:
            for other in lacking:
                shared = run.values.keys() & other.values.keys()
                differing = [key for key in shared if not same(run.values[key], other.values[key])]
                if len(differing) == 1 and differing[0] not in when:
                    key = differing[0]
                    values = [each_run.values[key] for each_run in using if key in each_run.values]
                    when[key] = tuple(
                        value
                        for value in _few_values(run.parameters[key])
                        if any(same(value, v) for v in values)
                    )
        return when


def _compare(space: Space, run: _Run) -> None:
    for name in space.parameters:
        if space.active(name, run.values) != (name in run.parameters):
            raise SpaceRefused(
                "condition",
                f"the objective suggests {name!r} only for some values of other parameters, and the test runs did not show for which values; "
                f"{INSTEAD}, with `when`",
            )


def _is_part(values: Config, chosen: Mapping[str, Value]) -> bool:
    """Return whether all `values` of an earlier run are among `chosen`. A run with `chosen` would then only repeat the earlier run."""
    return all(name in chosen and same(chosen[name], value) for name, value in values.items())


def _few_values(parameter: Parameter) -> list[Value]:
    """Return the values of a parameter to run the objective with, because they may decide which other parameters it suggests.

    These are all choices, or all integers of a range that has at most `FEW` integers. Return an empty list for all other ranges.
    """
    match parameter:
        case Categorical(choices):
            return list(choices)
        case Int() if parameter.count <= FEW:
            return [parameter.nth(index) for index in range(parameter.count)]
        case _:
            return []


def _parameter(name: str, distribution: BaseDistribution) -> Parameter:
    """Convert a distribution of Optuna to a parameter. Raise SpaceRefused if a search space cannot have such a parameter."""
    match distribution:
        case CategoricalDistribution(choices=choices):
            parameter: Parameter = Categorical(tuple(_plain_choice(name, choice) for choice in choices))
        case IntDistribution(low=low, high=high, log=log, step=step):
            parameter = Int(low, high, log, step=None if step == 1 else step)
        case FloatDistribution(low=low, high=high, log=log, step=step):
            parameter = Float(low, high, log, step=step)
        case _:
            raise SpaceRefused(
                "choice", f"{name!r} is a {type(distribution).__name__}, which cannot be converted; {INSTEAD}"
            )
    if not isinstance(parameter, Categorical) and parameter.low == parameter.high:
        return Categorical((parameter.low,))  # a range with one value, which Optuna allows
    return parameter


def _plain_choice(name: str, choice: Any) -> Value:
    """Convert a choice to a value of a job file. `np.float64` and other subclasses become the type that they derive from.

    Raises:
        SpaceRefused: A job file cannot have a value of this type.
    """
    if choice is None:
        return None
    for kind in (bool, int, float, str):
        if isinstance(choice, kind):
            return kind(choice)
    raise SpaceRefused(
        "choice",
        f"{name!r} has the choice {choice!r}; a job can have only numbers, text, booleans and None: suggest a name for "
        "each choice, and look the choice up by its name in the objective",
    )


@contextmanager
def _alarm(limit_s: float) -> Iterator[None]:
    """Raise _TimeIsUp in this thread after `limit_s` seconds, and then every second, in case the objective catches it."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
