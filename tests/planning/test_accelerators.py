"""Data sheets, and speeds of accelerators relative to each other."""

import doctest
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tuner.planning import accelerators
from tuner.planning.accelerators import ACCELERATORS, accelerator, relative_speed

names = st.sampled_from(sorted(ACCELERATORS))


def test_its_examples_hold() -> None:
    assert doctest.testmod(accelerators).failed == 0


def test_names_are_found_in_any_case_and_as_ray_writes_them() -> None:
    assert accelerator("a100-80g") is ACCELERATORS["A100-80GB"]
    assert accelerator("t4G") is ACCELERATORS["T4g"]
    assert accelerator("H100", 94) is ACCELERATORS["H100-NVL"]
    assert accelerator("H100", 80) is ACCELERATORS["H100"]
    assert accelerator("TPU-v4") is None
    assert relative_speed("T4", "") is None


@given(names, names)
def test_the_range_holds_what_is_counted_on_and_the_way_back_is_more_cautious(one: str, other: str) -> None:
    there, back = relative_speed(one, other), relative_speed(other, one)
    assert there is not None
    assert back is not None
    assert 0 < there[0] <= there[1] <= there[2]
    assert there[1] * back[1] <= 1  # a conversion in both directions never gains


def test_a_chip_beside_itself_is_as_fast() -> None:
    assert relative_speed("L4", "l4") == (1, 1, 1)
    assert relative_speed("H100", "H100-MEGA") == (1, 1, 1)
    assert relative_speed("A100", "A100-80GB") == (1, 1, Fraction(2039, 1555))
