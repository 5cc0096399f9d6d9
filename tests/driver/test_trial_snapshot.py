"""Test the snapshot of a trial from which its placement is decided, and which placement policy is used."""

from dataclasses import replace

from tests.driver.test_fallback import DEMAND, DEMAND_MACHINE, EXPENSIVE, SPOT, SPOT_MACHINE, WAIT_NS, Cluster
from tests.simulation.test_simulated_jobs import loop_config, spec
from tuner.domain.job import Resources
from tuner.domain.money import Price, Rate
from tuner.domain.objective import Fidelity
from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant
from tuner.driver.fallback import SpotWithFallback, placement_of
from tuner.driver.pace import JobPace
from tuner.driver.placement import AllowedPlaces, CheapestFree, Place, Placement, TrialSnapshot
from tuner.driver.trial_snapshot import snapshot
from tuner.tuning.state import State, TrialRecord


def stands(trial: TrialRecord, *, saved: int = 0, max_step: int | None = 27) -> TrialSnapshot:
    job = replace(spec("1", scheduler="none"), fidelity=Fidelity(max=max_step))
    state, pace = State.fresh(job, concurrency=1, rate=loop_config(1).rate), JobPace()
    state.trials.append(trial)
    state.steps, state.trained_ns = trial.steps, trial.trained_ns
    if trial.steps:
        pace.stepped(trial.id, trial.trained_ns // trial.steps)
    return snapshot(state, trial.id, {}, {trial.id: saved}, pace, now=Instant(0), time_ns=None)


def test_remaining_work_counts_from_the_newest_checkpoint() -> None:
    """A step took one second. After four steps, the mean may be wrong by a quarter."""
    trial_snapshot = stands(TrialRecord(0, {}, 9, steps=4, trained_ns=4 * NS), saved=3)
    assert (trial_snapshot.target, trial_snapshot.left_ns, trial_snapshot.least_ns) == (
        9,
        round(6 * NS * 1.25),
        round(6 * NS * 0.75),
    )
    trial_snapshot = stands(TrialRecord(0, {}, None, steps=4, trained_ns=4 * NS), saved=4)
    assert (trial_snapshot.target, trial_snapshot.left_ns) == (27, round(23 * NS * 1.25))


def test_remaining_work_of_trial_without_target_is_unknown() -> None:
    trial_snapshot = stands(TrialRecord(0, {}, None, steps=4, trained_ns=4 * NS), max_step=None)
    assert (trial_snapshot.target, trial_snapshot.left_ns, trial_snapshot.least_ns) == (None, None, 0)


def test_remaining_work_before_the_first_step_is_unknown() -> None:
    trial_snapshot = stands(TrialRecord(0, {}, 9))
    assert (trial_snapshot.target, trial_snapshot.left_ns, trial_snapshot.least_ns) == (9, None, 0)


def test_fallback_placement_is_used_if_both_markets_are_offered() -> None:
    def of(*offers: Offer) -> Placement:
        return placement_of(AllowedPlaces(offers, Resources(), list), spot_wait_ns=WAIT_NS)

    assert isinstance(of(DEMAND, SPOT), SpotWithFallback)
    for offers in ((SPOT, EXPENSIVE), (DEMAND,)):
        assert isinstance(of(*offers), CheapestFree)


def test_machine_without_offer_does_not_affect_placement() -> None:
    """The attempt could run on any machine."""
    cluster, anywhere = Cluster([SPOT_MACHINE, DEMAND_MACHINE]), Place(None, Rate(Price(10)))
    cluster.stands(at=anywhere)
    assert cluster.relocation() is None
    cluster.placement.paid(anywhere, 10**6 * NS, gained_ns=0, now=Instant(NS))
    assert cluster.begins() == SPOT
