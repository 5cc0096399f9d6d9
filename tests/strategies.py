"""Hypothesis settings of each tier, and strategies for the domain's values."""

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from tuner.domain.space import Categorical, Float, Int, Parameter, Space


def examples(count: int, *, gate: int | None = None, **more: Any) -> settings:
    """Return settings for `count` examples in `make core` and `make mutants`. Other profiles scale it by their examples.

    Args:
        gate: How many of them the gate and `make core` run, if `count` is too many.
    """
    profile = settings().max_examples
    return settings(max_examples=gate if gate and profile <= 100 else count * profile // 100, **more)


names = st.text("abcdefghij_", min_size=1, max_size=6)


@st.composite
def stepped(draw: st.DrawFn, values: int = 1000) -> Float | Int:
    """Draw a parameter with a step. `high` need not be a value, and decimal fractions are not exact as numbers."""
    count, digits = draw(st.integers(2, values)), draw(st.integers(0, 6))
    low, step = draw(st.integers(-1000, 1000)), draw(st.integers(2, 1000))
    high = low + step * (count - 1) + draw(st.integers(0, step - 1))
    if draw(st.booleans()):
        return Int(low, high, step=step)
    return Float(low / 10**digits, high / 10**digits, step=step / 10**digits)


@st.composite
def floats(draw: st.DrawFn) -> Float:
    log = draw(st.booleans())
    low = draw(st.floats(1e-6, 1e3)) if log else draw(st.floats(-1e6, 1e6))
    high = draw(st.floats(1.001, 100)) * low if log else low + draw(st.floats(0.001, 1e6))
    return Float(low, high, log)


@st.composite
def ints(draw: st.DrawFn) -> Int:
    log = draw(st.booleans())
    low = draw(st.integers(1, 100) if log else st.integers(-1000, 1000))
    return Int(low, low + draw(st.integers(1, 1000)), log)


categoricals = st.lists(
    st.one_of(st.text(max_size=5), st.integers(-5, 5), st.none()), min_size=1, max_size=5, unique=True
).map(lambda choices: Categorical(tuple(choices)))


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Draw up to six parameters. Some depend on a categorical parameter before them."""
    parameters: dict[str, Parameter] = {}
    for name in draw(st.lists(names, min_size=1, max_size=6, unique=True)):
        parameter = draw(st.one_of(floats(), ints(), stepped(), categoricals))
        parents = [(n, p) for n, p in parameters.items() if isinstance(p, Categorical)]
        if parents and draw(st.booleans()):
            parent, choices = draw(st.sampled_from(parents))
            when = {parent: tuple(draw(st.lists(st.sampled_from(choices.choices), min_size=1, unique=True)))}
            parameter = replace(parameter, when=when)
        parameters[name] = parameter
    return Space(parameters)
