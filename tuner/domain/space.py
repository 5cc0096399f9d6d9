"""Search spaces: named parameters. A parameter may be active only when other parameters have certain values."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from random import Random
from typing import Literal

from tuner.domain.errors import MAX_FAULTS, Fault, TunerError

Value = float | int | str | bool | None
Config = dict[str, Value]
When = Mapping[str, tuple[Value, ...]]
MAX_PARAMETERS = 1000
MAX_CHOICES = 1000  # the most choices of a categorical parameter
MAX_STEPS = 1000  # if a parameter with a step has at most this many values, a grid contains them all
NAMES_SHOWN = 10  # how many names of parameters or choices an error lists
MAX_VALUES = (
    2**40
)  # the most values of a parameter with a step, because indices up to this number are exact as floats


class SpaceRefused(TunerError):
    """This search space cannot be that of a job."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code  #: What is wrong, as one stable word.


Confidence = Literal["low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class Prior:
    """Where the user expects the best value of a parameter, and how sure the user is."""

    center: Value
    confidence: Confidence = "medium"


@dataclass(frozen=True, slots=True)
class Float:
    low: float
    high: float
    log: bool = False
    when: When = field(default_factory=dict)
    #: The distance between neighbouring values: `low`, `low + step` and so on, up to the last value that is at most `high`. None if
    #: every number is allowed. None is omitted from the stored JSON.
    step: float | None = field(default=None, metadata={"new": True})
    #: None if the user expects no value to be better than others.
    prior: Prior | None = field(default=None, metadata={"new": True})

    @property
    def count(self) -> int | None:
        """Return the number of values, or None if the parameter has no step."""
        if self.step is None:
            return None
        # In decimals, because 0.3 / 0.1 is less than 3 as a floating-point number.
        return int((_decimal(self.high) - _decimal(self.low)) / _decimal(self.step)) + 1

    def nth(self, index: int) -> float:
        """Return a value by its index, from 0, as the nearest number to the exact decimal: 0.15, not 0.15000000000000002."""
        assert self.step is not None
        return float(_decimal(self.low) + index * _decimal(self.step))

    def index(self, value: float) -> int:
        """Return the index of the value nearest to a number."""
        assert self.step is not None
        assert self.count is not None
        exact = (_decimal(value) - _decimal(self.low)) / _decimal(self.step)
        return min(self.count - 1, max(0, round(exact)))

    @property
    def in_words(self) -> str:
        """Return which values are allowed, for an error message."""
        steps = "" if self.step is None else f" in steps of {self.step:g}"
        return f"a number from {self.low:g} to {self.high:g}{steps}"

    def sample(self, rng: Random) -> float:
        if self.count is not None:
            return self.nth(rng.randrange(self.count))
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
            return min(self.high, max(self.low, drawn))
        return rng.uniform(self.low, self.high)

    def grid(self, points: int) -> list[Value]:
        """Return `points` values, evenly spaced on the linear or logarithmic scale of the parameter, including both ends.

        If the parameter has a step, return all its values, but at most max(points, MAX_STEPS) of them. If some must be left out, the
        others are evenly spaced and include both ends.
        """
        if self.count is not None:
            return [self.nth(index) for index in _spread(self.count, points)]
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        inner = [low + (high - low) * i / (points - 1) for i in range(1, points - 1)]
        return [self.low, *(math.exp(x) if self.log else x for x in inner), self.high]

    def contains(self, value: Value) -> bool:
        if (
            not isinstance(value, float | int)
            or isinstance(value, bool)
            or not self.low <= value <= self.high
        ):
            return False
        return self.step is None or value == self.nth(self.index(value))

    def faults(self, at: str) -> list[Fault]:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return [Fault(at, "low and high must be finite")]
        faults = []
        if self.low >= self.high:
            faults.append(Fault(f"{at}/low", f"must be less than high ({self.high})"))
        if self.log and self.low <= 0:
            faults.append(Fault(f"{at}/low", "must be more than 0 on a log scale"))
        if not math.isfinite(self.high - self.low):
            faults.append(
                Fault(
                    f"{at}/high",
                    "high - low is too large for a floating-point number; lower high or raise low",
                )
            )
        return faults or _step_faults(self, at) or _prior_faults(self, at)


@dataclass(frozen=True, slots=True)
class Int:
    low: int
    high: int
    log: bool = False
    when: When = field(default_factory=dict)
    #: The distance between neighbouring values, as in `Float`, but more than 1. None if every integer is allowed.
    step: int | None = field(default=None, metadata={"new": True})
    prior: Prior | None = field(default=None, metadata={"new": True})

    @property
    def count(self) -> int:
        """Return the number of values."""
        return (self.high - self.low) // (self.step or 1) + 1

    def nth(self, index: int) -> int:
        """Return a value by its index, from 0."""
        return self.low + index * (self.step or 1)

    def index(self, value: float) -> int:
        """Return the index of the value nearest to a number."""
        return min(self.count - 1, max(0, round((value - self.low) / (self.step or 1))))

    @property
    def in_words(self) -> str:
        """Return which values are allowed, for an error message."""
        steps = "" if self.step is None else f" in steps of {self.step}"
        return f"a whole number from {self.low} to {self.high}{steps}"

    def sample(self, rng: Random) -> int:
        if self.step is not None:
            return self.nth(rng.randrange(self.count))
        if not self.log:
            return rng.randint(self.low, self.high)
        drawn = math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5)))
        return min(self.high, max(self.low, round(drawn)))

    def grid(self, points: int) -> list[Value]:
        if self.step is not None:
            return [self.nth(index) for index in _spread(self.count, points)]
        if points > self.high - self.low:
            return list(range(self.low, self.high + 1))
        continuous = Float(self.low, self.high, self.log).grid(max(2, points))
        return list(dict.fromkeys(round(float(x)) for x in continuous if x is not None))

    def contains(self, value: Value) -> bool:
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            return False
        return (value - self.low) % (self.step or 1) == 0

    def faults(self, at: str) -> list[Fault]:
        faults = []
        if self.low >= self.high:
            faults.append(Fault(f"{at}/low", f"must be less than high ({self.high})"))
        if self.log and self.low < 1:
            faults.append(Fault(f"{at}/low", "must be at least 1 on a log scale"))
        if max(abs(self.low), abs(self.high)) > 2**53:
            faults.append(Fault(at, "low and high must be within ±2^53"))
        return faults or _step_faults(self, at) or _prior_faults(self, at)


@dataclass(frozen=True, slots=True)
class Categorical:
    choices: tuple[Value, ...]
    when: When = field(default_factory=dict)
    prior: Prior | None = field(default=None, metadata={"new": True})

    @property
    def in_words(self) -> str:
        """Return which values are allowed, for an error message."""
        more = ", …" if len(self.choices) > NAMES_SHOWN else ""
        return f"one of {', '.join(_cut(repr(choice)) for choice in self.choices[:NAMES_SHOWN])}{more}"

    def sample(self, rng: Random) -> Value:
        return rng.choice(self.choices)

    def grid(self, points: int) -> list[Value]:
        return list(self.choices)

    def contains(self, value: Value) -> bool:
        return any(same(value, choice) for choice in self.choices)

    def faults(self, at: str) -> list[Fault]:
        faults = []
        if not self.choices:
            faults.append(Fault(f"{at}/choices", "give at least one choice"))
        if len(set(map(_distinct, self.choices))) < len(self.choices):
            faults.append(Fault(f"{at}/choices", "each choice may be given only once"))
        if len(self.choices) > MAX_CHOICES:
            faults.append(Fault(f"{at}/choices", f"give at most {MAX_CHOICES} choices"))
        if any(isinstance(choice, float) and not math.isfinite(choice) for choice in self.choices):
            faults.append(Fault(f"{at}/choices", "numbers must be finite"))
        return faults or _prior_faults(self, at)


Parameter = Float | Int | Categorical


def steps_of(parameter: Float | Int) -> int | None:
    """Return the number of values of a parameter with a step, or None if it has no step."""
    return None if parameter.step is None else parameter.count


def _decimal(number: float) -> Decimal:
    """Convert a number to the decimal that Python prints for it: the float 0.1 becomes exactly 0.1."""
    return Decimal(repr(float(number)))


def _spread(count: int, points: int) -> list[int]:
    """Return all indices below `count`, but at most max(points, MAX_STEPS) of them.

    If some must be left out, the others are evenly spaced and include both ends.
    """
    points = max(MAX_STEPS, points)
    if count <= points:
        return list(range(count))
    return [i * (count - 1) // (points - 1) for i in range(points)]


def _step_faults(parameter: Float | Int, at: str) -> list[Fault]:
    """Return the faults of a step, by Optuna's rules. Call this only if `low` and `high` have no faults."""
    step, place = parameter.step, f"{at}/step"
    if step is None:
        return []
    if not 0 < step < math.inf:
        return [Fault(place, "must be more than 0")]
    if parameter.log:
        return [Fault(place, "a step cannot be combined with a log scale; leave out one of the two")]
    count = parameter.count
    assert count is not None
    if count < 2:
        return [Fault(place, f"must be at most high - low = {parameter.high - parameter.low:g}")]
    ends = (parameter.nth(0), parameter.nth(1), parameter.nth(count - 2), parameter.nth(count - 1))
    if count > MAX_VALUES or ends[0] == ends[1] or ends[2] == ends[3]:
        return [Fault(place, "is too small for this range; leave it out if every number is allowed")]
    return []


def _prior_faults(parameter: Parameter, at: str) -> list[Fault]:
    """Return the faults of a prior. Call this only if the parameter has no other faults."""
    prior = parameter.prior
    if prior is None or parameter.contains(prior.center):
        return []
    return [Fault(f"{at}/prior/center", f"must be {parameter.in_words}, not {prior.center!r}")]


def same(a: Value, b: Value) -> bool:
    """Return whether the values are equal. True is not equal to 1 here, because they differ in JSON."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _cut(text: str) -> str:
    """Return at most 100 characters of a name or a choice, because an error may repeat it many times."""
    return text if len(text) <= 100 else f"{text[:99]}…"


def _distinct(value: Value) -> tuple[bool, Value]:
    """Return a key that two values share if they are the same."""
    return isinstance(value, bool), value


@dataclass(frozen=True)
class Space:
    """Parameters by name.

    A parameter with `when` is active only if every parameter that `when` names is active and has one of the listed values.
    """

    parameters: Mapping[str, Parameter]

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Return the parameter names, sorted so that each parameter follows the parameters that its `when` names.

        Parameters that depend on each other in a cycle, or on an unknown parameter, are omitted. `faults` reports them.
        """
        waits = {name: len(parameter.when) for name, parameter in self.parameters.items()}
        followers: dict[str, list[str]] = {}
        for name, parameter in self.parameters.items():
            for other in parameter.when:
                followers.setdefault(other, []).append(name)
        ordered = [name for name, count in waits.items() if count == 0]
        for name in ordered:  # the list grows during the loop
            for follower in followers.get(name, ()):
                waits[follower] -= 1
                if waits[follower] == 0:
                    ordered.append(follower)
        return tuple(ordered)

    def active(self, name: str, config: Mapping[str, Value]) -> bool:
        conditions = self.parameters[name].when.items()
        return all(o in config and any(same(config[o], v) for v in values) for o, values in conditions)

    def sample(self, rng: Random) -> Config:
        config: Config = {}
        for name in self.order:
            if self.active(name, config):
                config[name] = self.parameters[name].sample(rng)
        return config

    def grid(self, points: int) -> Iterator[Config]:
        """Yield every combination once, without inactive parameters. Each numeric parameter has `points` values."""
        names = self.order
        axes = [self.parameters[name].grid(points) for name in names]
        seen: set[tuple[tuple[str, Value], ...]] = set()
        for values in itertools.product(*axes):
            config: Config = {}
            for name, value in zip(names, values, strict=True):
                if self.active(name, config):
                    config[name] = value
            key = tuple((name, f"{type(value).__name__}:{value}") for name, value in config.items())
            if key not in seen:
                seen.add(key)
                yield config

    def contains(self, config: Mapping[str, Value]) -> bool:
        expected = {name for name in self.parameters if self.active(name, config)}
        return expected == set(config) and all(self.parameters[n].contains(v) for n, v in config.items())

    def typed(self, config: Mapping[str, Value]) -> Config:
        """Return the configuration in the form in which a sampler writes it.

        The parameters are in the order of the space. A whole number becomes a float if its parameter is a `Float`, because JSON does
        not distinguish the two.
        """
        names = [name for name in self.order if name in config]
        names += [name for name in config if name not in self.parameters]
        return {name: self._typed(name, config[name]) for name in names}

    def _typed(self, name: str, value: Value) -> Value:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return float(str(value)) if is_whole and isinstance(self.parameters.get(name), Float) else value

    def config_faults(self, config: Mapping[str, Value], at: str) -> list[Fault]:
        """Return the faults of a configuration that a user gives, but at most `MAX_FAULTS + 1`. `at` is the JSON pointer to it."""
        return list(itertools.islice(self._config_faults(config, at), MAX_FAULTS + 1))

    def _config_faults(self, config: Mapping[str, Value], at: str) -> Iterator[Fault]:
        active = dict.fromkeys(name for name in self.order if self.active(name, config))
        for name, value in config.items():
            place = f"{at}/{pointer_token(name)}"
            if name not in self.parameters:
                known = ", ".join(_cut(known) for known in list(self.parameters)[:NAMES_SHOWN])
                yield Fault(place, f"is not a parameter of the search space, which has {known}")
            elif name not in active:
                yield Fault(
                    place,
                    "the other values do not meet the condition (when) of this parameter; leave it out",
                )
            elif not self.parameters[name].contains(value):
                yield Fault(place, f"must be {self.parameters[name].in_words}, not {value!r}")
        for name in active:
            if name not in config:
                yield Fault(
                    f"{at}/{pointer_token(name)}", f"is missing; give {self.parameters[name].in_words}"
                )

    def without_priors(self) -> "Space":
        return Space({name: replace(parameter, prior=None) for name, parameter in self.parameters.items()})

    def size(self) -> int | None:
        """Return an upper bound of the number of configurations, or None if a parameter is continuous."""
        counts = [
            len(parameter.choices) if isinstance(parameter, Categorical) else parameter.count
            for parameter in self.parameters.values()
        ]
        known = [count for count in counts if count is not None]
        return math.prod(known) if len(known) == len(counts) else None

    def faults(self) -> list[Fault]:
        if not self.parameters:
            return [Fault("/search_space", "give at least one parameter")]
        if len(self.parameters) > MAX_PARAMETERS:
            return [Fault("/search_space", f"give at most {MAX_PARAMETERS} parameters")]
        faults = []
        for name, parameter in self.parameters.items():
            faults += parameter.faults(f"/search_space/{pointer_token(name)}")
        # Conditions are compared with the values of other parameters, which may be too many if those have faults.
        return faults or self._condition_faults()

    def _condition_faults(self) -> list[Fault]:
        faults = []
        accepts = {name: _membership_test(parameter) for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            faults += _when_faults(f"/search_space/{pointer_token(name)}", parameter.when, accepts)
        cyclic = set(self.parameters) - set(self.order)
        unknown = {o for p in self.parameters.values() for o in p.when if o not in self.parameters}
        if cyclic and not unknown:
            faults += [
                Fault(
                    f"/search_space/{pointer_token(n)}/when",
                    "this parameter depends on itself, directly or through others; remove one of the conditions",
                )
                for n in sorted(cyclic)
            ]
        return faults


def _membership_test(parameter: Parameter) -> Callable[[Value], bool]:
    """Return a function that decides quickly whether a value is a value of the parameter, also if there are many choices."""
    if not isinstance(parameter, Categorical):
        return parameter.contains
    choices = frozenset(map(_distinct, parameter.choices))
    return lambda value: _distinct(value) in choices


def _when_faults(at: str, when: When, accepts: Mapping[str, Callable[[Value], bool]]) -> list[Fault]:
    faults = []
    for other, values in when.items():
        place = f"{at}/when/{pointer_token(other)}"
        if other not in accepts:
            faults.append(Fault(place, f"{other!r} is not a parameter of the search space"))
        elif not values:
            faults.append(Fault(place, "give at least one value"))
        elif wrong := [value for value in values if not accepts[other](value)]:
            faults.append(Fault(place, f"the parameter {other!r} cannot have the value {wrong[0]!r}"))
    return faults


def pointer_token(name: str) -> str:
    """Return the name as one token of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
