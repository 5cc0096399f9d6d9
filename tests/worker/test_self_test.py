"""Test the restore self-test with a real worker and real kills: which trainables pass it, and the messages
for the others.
"""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from tuner.worker.self_test import RestoreSelfTest, SelfTestOrder, Verdict, self_test
from tuner.worker.supervisor import Supervisor

ORDER: dict[str, Any] = {"max_step": 9, "resources": {"CPU": 1}, "limit_s": 240}


@pytest.fixture
def verdict_on(supervisor_of: Callable[[str], Supervisor], tmp_path: Path) -> Callable[..., Verdict]:
    """Run the self-test of a case with the supervisor that tests share."""
    numbers = count()

    def run(
        case: str, *, configs: Sequence[dict[str, Any]] = ({"x": 0.1, "scores": [1, 2, 3]},), **more: Any
    ) -> Verdict:
        entry = case if case.startswith("tests.") else f"tests.worker.{case}"
        supervisor, storage = supervisor_of(entry.partition(":")[0]), tmp_path / str(next(numbers))
        order = SelfTestOrder(entry=entry, configs=configs, **ORDER | more)
        return RestoreSelfTest(order, supervisor, storage).verdict()

    return run


def test_self_test_leaves_no_process_behind() -> None:
    before = psutil.Process().children()
    verdict = self_test(SelfTestOrder(entry="tests.worker.plain_cases:counts", configs=[{}], **ORDER))
    assert "cannot be resumed, because it reported no checkpoint" in verdict.reason
    assert psutil.Process().children() == before


@pytest.mark.parametrize(
    "case",
    [
        "restoring:well",
        "restoring:one_step_of_many",
        "tune_cases:tune_checkpoints",
        "tune_cases:Remembers",
        "tune_cases:Stamps",
    ],
)
def test_trainable_that_resumes_correctly_passes(verdict_on: Callable[..., Verdict], case: str) -> None:
    assert verdict_on(case) == Verdict(passed=True)


def test_trainable_with_a_single_or_unlimited_step_count_is_tested(
    verdict_on: Callable[..., Verdict],
) -> None:
    assert verdict_on("restoring:well", max_step=1).passed
    assert verdict_on("restoring:well", max_step=None).passed


FAILS = {
    "restoring:forgets": "counter['count']",
    "restoring:by_halves": "counter['count']",
    "tune_cases:Ignores": "the file model.pt",
    "restoring:breaks": "could not continue from its checkpoint of step 1: CheckpointUnreadable",
    "restoring:other_shape": "build the same parts from the same config",
    "tune_cases:never_saves": "cannot be resumed, because it reported no checkpoint",
    "tune_cases:follows_scores": "started again from scratch",
}


@pytest.mark.parametrize(("case", "message"), FAILS.items(), ids=FAILS.keys())
def test_incorrect_restore_fails_permanently_with_the_location(
    verdict_on: Callable[..., Verdict], case: str, message: str
) -> None:
    verdict = verdict_on(case)
    assert not verdict.passed
    assert verdict.lasting
    assert message in verdict.reason


def test_configuration_that_raises_is_skipped_for_the_next(verdict_on: Callable[..., Verdict]) -> None:
    assert verdict_on("restoring:raises_where_large", configs=[{"x": 0.9}, {"x": 0.1}]).passed
    verdict = verdict_on("restoring:raises_where_large", configs=[{"x": 0.9}, {"x": 0.8}])
    assert (verdict.passed, verdict.lasting) == (False, False)
    assert "ValueError: x is too large" in verdict.reason


def test_self_test_that_times_out_fails_but_not_permanently(
    verdict_on: Callable[..., Verdict],
) -> None:
    verdict = verdict_on("cases:hangs", limit_s=1)
    assert (verdict.passed, verdict.lasting) == (False, False)
    assert "did not finish within 1 s" in verdict.reason


@pytest.mark.parametrize(("case", "passes"), [("with_spot_safe", True), ("objective", False)])
def test_objective_passes_if_it_restores_its_state(
    verdict_on: Callable[..., Verdict], case: str, passes: bool
) -> None:
    config = {"optimizer": "adamw", "rate": 0.01, "layers": 1, "width_0": 8}
    verdict = verdict_on(f"tests.frameworks.with_optuna:{case}", configs=[config], kind="optuna")
    assert verdict.passed is passes, verdict.reason
