"""Test rungs and scores, and which settings for them are invalid."""

import math

import pytest

from tuner.domain.objective import Fidelity, Objective


@pytest.mark.parametrize(
    ("fidelity", "pointer"),
    [
        (Fidelity(min=0), "/fidelity/min"),
        (Fidelity(max=0), "/fidelity/max"),
        (Fidelity(max=10_000_001), "/fidelity/max"),
        (Fidelity(min=5, max=4), "/fidelity/max"),
        (Fidelity(reduction_factor=1), "/fidelity/reduction_factor"),
        (Fidelity(unit=" "), "/fidelity/unit"),
        (Fidelity(max=27, proxies={"resolution": (16, 32)}), "/fidelity/proxies/resolution"),
        (Fidelity(proxies={"resolution": (16, 32)}), "/fidelity/proxies/resolution"),
        (Fidelity(max=3, proxies={"resolution": (math.inf,)}), "/fidelity/proxies/resolution"),
    ],
)
def test_invalid_fidelity_is_reported_with_its_field(fidelity: Fidelity, pointer: str) -> None:
    assert [fault.pointer for fault in fidelity.faults()] == [pointer]


def test_rungs_grow_by_the_reduction_factor_below_the_last_step() -> None:
    assert Fidelity(min=1, max=27).rungs() == (1, 3, 9)
    assert Fidelity(min=2, max=9, reduction_factor=2).rungs() == (2, 4, 8)
    assert Fidelity(min=9, max=9).rungs() == Fidelity().rungs() == ()
    assert Fidelity(min=1, max=27).faults() == []


def test_proxies_need_one_value_per_rung() -> None:
    proxies = {"data_fraction": (0.1, 0.3, 1.0), "resolution": (16, 24, 32)}
    fidelity = Fidelity(max=27, proxies=proxies)
    assert fidelity.faults() == []
    assert [fidelity.stage(step) for step in (1, 2, 3, 4, 9, 10, 27)] == [0, 1, 1, 2, 2, 2, 2]
    (fault,) = Fidelity(max=27, proxies={"resolution": (16, 32)}).faults()
    assert "the rungs 1, 3, 9; the number of values must be 3" in fault.detail


def test_higher_score_is_better_in_either_mode() -> None:
    up, down = Objective("acc", target=0.9), Objective("loss", "min", target=0.1)
    assert up.score(0.5) == 0.5
    assert down.score(0.5) == -0.5
    assert [up.reached(0.9), up.reached(0.89), down.reached(0.1), down.reached(0.11)] == [True, False] * 2
    assert not Objective("acc").reached(math.inf)


def test_invalid_objective_is_reported_with_its_field() -> None:
    assert [fault.pointer for fault in Objective(" ").faults()] == ["/objective/metric"]
    assert [fault.pointer for fault in Objective("a", target=math.nan).faults()] == ["/objective/target"]
    assert Objective("a", target=0.5).faults() == []
