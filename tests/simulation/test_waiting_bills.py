"""Test drivers that die while attempts wait for machines, or after they got them: only attempts with a machine
are billed.
"""

from collections.abc import Sequence

from tests.simulation.test_simulated_jobs import QuickCurves, check_books, spec
from tuner.domain import events as ev
from tuner.domain.cost import total
from tuner.domain.money import Price, Rate
from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant
from tuner.driver.placement import Place, TrialSnapshot
from tuner.driver.ports import LoopConfig
from tuner.simulator.world import SimulatedRun

SPOT = Offer("m", Price(1_000_000), 1, 0, "spot")
HOUR_NS = 3600 * NS


class OnlySpot:
    def choose(self, trial: TrialSnapshot) -> Sequence[Place]:
        return [Place(SPOT, Rate(SPOT.price))]

    def relocation(self, trial: TrialSnapshot) -> Place | None:
        return None

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        pass


def without_machines() -> SimulatedRun:
    loop_config = LoopConfig("job_0", Rate(SPOT.price), 2, 10 * NS)
    run = SimulatedRun(spec("1", seed=1), loop_config, QuickCurves(), seed=1, placement=OnlySpot())
    for worker in run.fleet.workers:
        worker.up = False
    run._launch(ev.ControlRequested(run.clock.now(), "resume"))
    return run


def passes(run: SimulatedRun, ns: int) -> None:
    over: list[bool] = []
    run.clock.after(ns, lambda: over.append(True))
    while not over and run.clock.run_next():
        pass


def test_waiting_attempt_costs_nothing_across_driver_deaths() -> None:
    run = without_machines()
    before = run.journal.tables.account.posted
    for _ in range(5):
        passes(run, HOUR_NS)
        assert all(lease.waits for lease in run.loop.leases.values())
        run._launch(ev.ControlRequested(run.clock.now(), "resume"))
    assert run.journal.tables.account.posted == before
    check_books(run)


def test_late_worker_is_billed_from_its_node_assignment() -> None:
    """The attempt waited for an hour, and has worked for two of the ten seconds of its lease when its driver
    dies.
    """
    run = without_machines()
    before = run.journal.tables.account.posted.usd
    passes(run, HOUR_NS)
    lease = next(iter(run.loop.leases.values()))
    run.loop.node_assigned(lease.trial, lease.attempt)
    assert run.journal.tables.attempts[lease.trial, lease.attempt].assigned_at == run.clock.now()
    passes(run, 2 * NS)
    run._launch(ev.ControlRequested(run.clock.now(), "resume"))
    spent = run.journal.tables.account.posted.usd
    rate = Rate(SPOT.price)
    assert spent.micro_usd - before.micro_usd == rate.cost(2 * NS).usd.micro_usd
    assert total(run.journal.tables.attempts[lease.trial, lease.attempt].costs) == rate.cost(2 * NS)
    check_books(run)
