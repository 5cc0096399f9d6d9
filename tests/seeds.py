"""Seeds of the seeded tests: a fixed number in the gate; with `--all`, every seed and as many fresh ones."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest


def parametrize(metafunc: pytest.Metafunc, *, gate: Iterable[int], every: Sequence[int]) -> None:
    """Run each test that takes a `seed` with the seeds of `--seed` if given, otherwise with those of the tier."""
    if "seed" not in metafunc.fixturenames:
        return
    option = metafunc.config.option
    seeds = option.seed or gate
    if option.all and not option.seed:
        seeds = [*every, *range(option.fresh_seed, option.fresh_seed + len(every))]
    metafunc.parametrize("seed", list(dict.fromkeys(seeds)))


def first(gate: int, every: int) -> list[object]:
    """Return the seeds below `every`. Those from `gate` on are marked `extended`."""
    extended = [pytest.param(seed, marks=pytest.mark.extended) for seed in range(gate, every)]
    return [*range(gate), *extended]


@contextmanager
def reproducible(test: str, seed: int) -> Iterator[None]:
    """Add to a failure the command that runs `test`, a file or a node id, with this seed only."""
    try:
        yield
    except Exception as error:
        error.add_note(f"reproduce: .venv/bin/python -m pytest {test} --seed {seed}")
        raise
