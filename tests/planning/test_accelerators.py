"""Data sheets, and speeds of accelerators relative to each other."""

import doctest
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tests.planning.advising import listing
from tuner.planning import accelerators
from tuner.planning.accelerators import ACCELERATORS, accelerator, relative_speed
from tuner.planning.catalogue import Catalogue
from tuner.service.machines import accelerator_of

names = st.sampled_from(sorted(ACCELERATORS))


def test_docstring_examples_hold() -> None:
    assert doctest.testmod(accelerators).failed == 0


def test_names_match_in_any_case_and_in_the_spelling_of_ray() -> None:
    assert accelerator("a100-80g") is ACCELERATORS["A100-80GB"]
    assert accelerator("t4G") is ACCELERATORS["T4g"]
    assert accelerator("H100", 94) is ACCELERATORS["H100-NVL"]
    assert accelerator("H100", 80) is ACCELERATORS["H100"]
    assert accelerator("TPU-v4") is None
    assert relative_speed("T4", "") is None


def test_machine_with_an_h100_nvl_is_told_from_other_h100s_by_its_memory() -> None:
    machines = [
        listing(f"{vram}", "1.00", gpu=gpu, gpus=1, vram=vram)
        for gpu, vram in (("H100", 80), ("H100", 94), ("TPU-v4", 32))
    ]
    named = [
        accelerator_of(Catalogue(tuple(machines), "made up"), kind) for kind in ("80", "94", "32", "none")
    ]
    assert named == ["H100", "H100-NVL", "TPU-v4", ""]


@given(names, names)
def test_relative_speed_lies_in_its_range_and_a_round_trip_never_gains(name: str, other: str) -> None:
    there, back = relative_speed(name, other), relative_speed(other, name)
    assert there is not None
    assert back is not None
    assert 0 < there[0] <= there[1] <= there[2]
    assert there[1] * back[1] <= 1  # a conversion in both directions never gains


def test_relative_speed_of_the_same_chip_is_one() -> None:
    assert relative_speed("L4", "l4") == (1, 1, 1)
    assert relative_speed("H100", "H100-MEGA") == (1, 1, 1)
    assert relative_speed("A100", "A100-80GB") == (1, 1, Fraction(2039, 1555))
