"""Test when a running attempt saves: depending on the duration of saves, the market, and the configured
interval.
"""

import pytest

from tuner.domain.checkpointing import (
    CRASH_MEAN_NS,
    SPOT_MEAN_NS,
    Hazard,
    InterruptionRisk,
    Losses,
    SaveTimes,
    steps_between,
)
from tuner.domain.time import HOUR_NS, NS
from tuner.driver.placement import NOTICE_NS, interruption_risk
from tuner.worker.saves import LEAST_NS, Saves

SPOT = InterruptionRisk(preemption=Hazard.of_spot())
STEP_NS, STALL_NS, DURABLE_NS = 10 * NS, NS // 2, 2 * NS


class Run:
    """A run with steps of equal length. Each save stalls training for the same time and takes equally long to
    become durable. `saved` lists the steps saved.
    """

    def __init__(
        self, exposed: InterruptionRisk, *, interval_ns: int | None = None, stall_ns: int = STALL_NS
    ) -> None:
        self.saves = Saves(exposed, interval_ns, 0)
        self.now = self.stalled = self.trained = 0
        self.saved: list[int] = []
        self._stall_ns, self._step, self._loses = stall_ns, 0, 0

    def step(self, step_ns: int = STEP_NS, *, fails: bool = False) -> None:
        self.now += step_ns
        self.trained += step_ns
        self._step += 1
        trained = self.saves.stepped(step_ns + self._loses)
        self._loses = 0
        save = self.saves.due(trained, self.now)
        self.saves.answered(self.now, save=save)
        if save:
            self._save(fails)

    def _save(self, fails: bool) -> None:
        self.saved.append(self._step)
        self.saves.phase("checkpoint", self.now)
        self.now += self._stall_ns
        self.stalled += self._stall_ns
        self._loses = self._stall_ns
        self.saves.phase("train", self.now)
        if not fails:
            self.saves.made_durable(self.now + DURABLE_NS)

    def gaps(self) -> list[int]:
        return [later - earlier for earlier, later in zip(self.saved, self.saved[1:], strict=False)]


@pytest.mark.parametrize("stall_ns", [LEAST_NS, STALL_NS, 5 * NS])
@pytest.mark.parametrize(
    "exposed", [SPOT, InterruptionRisk(), InterruptionRisk(preemption=Hazard.of_spot(), notice_ns=NOTICE_NS)]
)
def test_save_interval_follows_the_rule_for_measured_save_times(
    exposed: InterruptionRisk, stall_ns: int
) -> None:
    run = Run(exposed, stall_ns=stall_ns)
    while len(run.saved) < 4:
        run.step()
    saving = SaveTimes(stall_ns, stall_ns + DURABLE_NS)
    wanted = steps_between(step_ns=STEP_NS, saving=saving, risk=exposed)
    assert set(run.gaps()) == {wanted}
    # the duration of the first save is not known in advance
    assert run.stalled <= run.trained / 20 + stall_ns


def test_every_step_longer_than_the_shortest_notice_is_saved() -> None:
    """A step of 18 s is longer than the notice of 15 s in which it would have to be finished and saved."""
    run = Run(interruption_risk("spot", Losses()), stall_ns=LEAST_NS)
    for _ in range(6):
        run.step(18 * NS)
    assert run.saved == [1, 2, 3, 4, 5, 6]


def test_save_stall_is_not_counted_as_training() -> None:
    run = Run(SPOT, stall_ns=5 * NS)
    while not run.saved:
        run.step()
    assert run.saves.stepped(STEP_NS + 5 * NS) == STEP_NS


def test_mixed_step_lengths_keep_stalls_within_the_limit() -> None:
    run = Run(InterruptionRisk(preemption=Hazard(60 * NS)), stall_ns=NS)
    while len(run.saved) < 20:
        run.step(10 * NS if len(run.saved) % 2 else NS // 10)
    assert run.stalled <= run.trained / 20 + run._stall_ns


def test_more_frequent_preemptions_cause_more_frequent_saves() -> None:
    gaps = []
    for mean_ns in (HOUR_NS // 10, HOUR_NS, 10 * HOUR_NS, 100 * HOUR_NS):
        run = Run(InterruptionRisk(preemption=Hazard(mean_ns)))
        while len(run.saved) < 3:
            run.step()
        gaps.append(run.gaps()[-1])
    assert gaps == sorted(set(gaps))


def test_failed_save_is_retried_after_an_interval_and_not_each_step() -> None:
    run = Run(SPOT)
    while len(run.saved) < 3:
        run.step(fails=True)
    assert run.saves.saving is None
    assert min(run.gaps()) > 1


def test_configured_save_interval_is_kept() -> None:
    run = Run(SPOT, interval_ns=60 * NS, stall_ns=0)
    for _ in range(30):
        run.step()
    assert run.saved == [6, 12, 18, 24, 30]


def test_exposure_without_observations_comes_from_the_market() -> None:
    assert interruption_risk("on_demand", Losses()) == InterruptionRisk()
    for market in ("spot", "spot_with_fallback"):
        expected = interruption_risk(market, Losses())
        assert expected.preemption == Hazard(SPOT_MEAN_NS)
        assert expected.notice_ns == NOTICE_NS


def test_longer_observation_outweighs_the_prior() -> None:
    on_four = interruption_risk("spot", Losses(), 4)
    assert on_four.preemption == Hazard(SPOT_MEAN_NS // 4)
    assert on_four.crash == interruption_risk("on_demand", Losses(), 4).crash == Hazard(CRASH_MEAN_NS // 4)
    calm = interruption_risk("spot", Losses(98 * HOUR_NS, {"completed": 50}))
    stormy = interruption_risk("spot", Losses(8 * HOUR_NS, {"preempted": 60, "lost": 39}))
    assert calm.preemption is not None
    assert calm.preemption.mean_ns == 100 * HOUR_NS
    assert stormy.preemption is not None
    assert stormy.preemption.mean_ns == HOUR_NS // 10
    assert (stormy.notices.preemptions, stormy.notices.missed) == (109, 40)


def test_lost_on_demand_machines_shorten_the_expected_crash_interval() -> None:
    assert interruption_risk("on_demand", Losses(HOUR_NS)).crash.mean_ns > CRASH_MEAN_NS
    once, often = (interruption_risk("on_demand", Losses(HOUR_NS, {"lost": n})).crash.mean_ns for n in (1, 9))
    assert once == 3 * HOUR_NS // 2
    assert often == 3 * HOUR_NS // 10


def test_a_long_step_is_saved_in_its_middle_as_often_as_short_steps_at_their_ends() -> None:
    saves = Saves(SPOT, None, 0)
    interval = next(second for second in range(10_000) if saves.due_within(second * NS, second * NS))
    short = steps_between(step_ns=NS, saving=SaveTimes(LEAST_NS, saves.durable_ns), risk=SPOT)
    assert interval == short
    saves.ordered_within(interval * NS, interval * NS)
    later = (2 * interval - 1) * NS
    assert not saves.due_within(later, later)
    assert saves.due_within(later + NS, later + NS)
    fixed = Saves(SPOT, 60 * NS, 0)
    assert [fixed.due_within(0, second * NS) for second in (59, 60)] == [False, True]
