"""Test jobs that run only in a window of the day, on a simulated clock that starts at 22:13:20 UTC."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.test_simulated_jobs import Curves, check_books, loop_config, spec
from tests.strategies import examples
from tuner.domain import events as ev
from tuner.domain.calendar import Window
from tuner.domain.cost import total
from tuner.domain.money import FREE, Money
from tuner.domain.records import OpenHold
from tuner.simulator.world import NONE, Faults, SimulatedRun

DAYS_MAX = 60


class Nights:
    """A job that is launched each time its window opens, until it ends for good."""

    def __init__(self, window: Window, *, seed: int = 0, faults: Faults = NONE, usd: str = "0.02") -> None:
        self.window, self.days = window, 1
        self.spec = replace(spec(usd, seed=seed), window=window)
        self.run = SimulatedRun(self.spec, loop_config(), Curves(), faults=faults, seed=seed)
        self.run.run()
        while self.run.loop.end is not None and self.run.loop.end.reopens:
            self.days += 1
            assert self.days < DAYS_MAX
            self._open()
            self.run.run()

    def _open(self) -> None:
        now = self.run.clock.now()
        assert self.run.journal.tables.job[0] == "paused"
        assert not self.run.journal.open_holds()
        self.run.clock.offset_ns += self.window.opening(self.window.closing(now)) - now
        self.run._launch(ev.ControlRequested(self.run.clock.now(), "resume"))

    @property
    def holds(self) -> list[OpenHold]:
        return [hold for hold, _ in self.run.journal.tables.holds.values()]

    def bill(self, kind: str) -> Money:
        bills = self.run.journal.tables.bills.values()
        return total({n: bill.get(kind, FREE) for n, bill in enumerate(bills)}).usd  # type: ignore[call-overload, misc]


@pytest.fixture(scope="module")
def nights() -> Nights:
    return Nights(Window("22:13", "22:14"))


def test_windowed_job_runs_nightly_and_loses_at_most_a_first_step(nights: Nights) -> None:
    """The lost step, 1.5 s, is that of a new trial whose pace is unknown."""
    end = nights.run.loop.end
    assert end is not None
    assert (end.state, end.reason) == ("succeeded", "budget_usd")
    assert nights.days > 3
    assert nights.bill("lost") <= nights.run.loop_config.rate.price.of(nights.days * 1_500_000_000)
    assert nights.bill("train") > Money(15_000)
    check_books(nights.run)


@examples(10, gate=5)
@given(seed=st.integers(0, 10**6), minutes=st.integers(1, 3), crashes=st.booleans())
def test_holds_lie_within_the_window(seed: int, minutes: int, crashes: bool) -> None:
    window = Window("22:13", f"22:{13 + minutes}")
    faults = Faults(crash=0.02, driver_restart=0.02) if crashes else NONE
    nights = Nights(window, seed=seed, faults=faults, usd="0.01")
    for hold in nights.holds:
        assert window.is_open(hold.placed_at)
        assert hold.ends_at <= window.closing(hold.placed_at)
    check_books(nights.run)


def test_trials_resume_where_they_stopped_at_window_close(nights: Nights) -> None:
    attempts = sorted(nights.run.journal.tables.attempts.values(), key=lambda row: (row.trial, row.attempt))
    assert any(row.attempt > 1 for row in attempts)
    for attempt, following in pairwise(attempts):
        if attempt.trial == following.trial:
            assert (attempt.end, following.from_step) == ("paused", attempt.to_step)


def test_step_longer_than_the_window_costs_only_its_first_night() -> None:
    class Slow(Curves):
        def step_ns(self, config: object, step: int) -> int:
            return 200 * 10**9

    run = SimulatedRun(replace(spec(), window=Window("22:13", "22:14")), loop_config(1), Slow())
    run.run()
    assert run.loop.end is not None
    assert run.loop.end.reopens
    assert run.journal.account().posted.usd <= run.loop_config.rate.price.of(41 * 10**9)


@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_control_request_while_window_closes_is_honoured(action: str) -> None:
    run = SimulatedRun(replace(spec(), window=Window("22:13", "22:14")), loop_config(), Curves())
    while run.loop.state.exhausted_limit != "window":
        assert run.clock.run_next()
    run.loop.handle_event(ev.ControlRequested(run.clock.now(), action))  # type: ignore[arg-type]
    run.run()
    assert run.loop.end is not None
    assert run.loop.end.state == {"pause": "paused", "cancel": "cancelled"}[action]
    assert not run.loop.end.reopens
