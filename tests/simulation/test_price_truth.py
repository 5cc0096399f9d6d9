"""Test that the machine that an attempt got is billed, whether it is cheaper, more expensive, forbidden or of
unknown price, and that the budget holds.
"""

from dataclasses import replace
from random import Random

import pytest

from tests.simulation.test_simulated_jobs import PRICE, QuickCurves, check_books, spec
from tests.simulation.watched import run_metered, run_watched
from tuner.domain.job import Resources
from tuner.domain.money import Price, Rate
from tuner.domain.offer import Offer, WorkerMachine
from tuner.driver.machine_check import MachineCheck, forbidden
from tuner.driver.placement import AnyMachine
from tuner.driver.ports import Assignment, LoopConfig
from tuner.simulator.world import Faults, MachineKnowledge, SimulatedRun

ASKED = Resources(cpus=1, market="spot_with_fallback")


def offer(usd: str, market: str = "on_demand", kind: str = "m", region: str | None = None) -> Offer:
    return Offer(kind, Price.from_usd_per_hour(usd), 1, 0, market, region, "a list")


def run_of(
    offers: "dict[str, Offer | None]",
    *,
    wanted: Resources = ASKED,
    usd: str = "0.003",
    seed: int = 0,
    faults: Faults | None = None,
    concurrency: int = 2,
) -> SimulatedRun:
    """Run a job whose attempts get one of these machines at random for each node. A label tells the machines apart."""
    rng, names = Random(f"machines/{seed}"), sorted(offers)

    def machine(_: Assignment) -> WorkerMachine:
        first, *others = (WorkerMachine({"name": rng.choice(names)}, 1, 0) for _ in range(wanted.nodes))
        return replace(first, others=tuple(others))

    most_expensive = max(
        [PRICE, *(machine_offer.price for machine_offer in offers.values() if machine_offer is not None)]
    )
    return SimulatedRun(
        spec(usd, seed=seed),
        LoopConfig("job_0", Rate(most_expensive), concurrency, 10 * 10**9),
        QuickCurves(),
        seed=seed,
        faults=faults or Faults(),
        placement=AnyMachine(Rate(PRICE)),
        knowledge=MachineKnowledge(machine, MachineCheck(wanted, lambda it: offers[it.labels["name"]])),
    )


@pytest.mark.parametrize("usd", ["0.03", "0.1", "0.35"])
def test_attempt_is_billed_at_the_price_of_its_assigned_machine(usd: str) -> None:
    """The job was admitted at $0.10 an hour."""
    run = run_of({"only": offer(usd, "spot", "g6", "here")}, concurrency=1)
    metered = run_metered(run)
    rows = run.journal.tables.attempts
    assert rows
    for key, row in rows.items():
        assert row.machine is not None
        assert (row.machine.instance_type, row.machine.region, row.machine.source) == ("g6", "here", "a list")
        assert (row.market, row.price) == ("spot", Price.from_usd_per_hour(usd))
        billed = sum(cost.usd.micro_usd for cost in row.costs.values())
        exact = row.price.of(metered[key]).micro_usd
        assert billed <= exact <= billed + 1
    check_books(run)


def test_attempt_on_two_nodes_is_billed_at_the_sum_of_their_prices() -> None:
    machines: dict[str, Offer | None] = {"a": offer("0.03"), "b": offer("0.1")}
    run = run_of(machines, wanted=replace(ASKED, nodes=2), usd="0.01")
    metered = run_metered(run)
    rows = run.journal.tables.attempts
    assert {row.price for row in rows.values()} == {
        Price.from_usd_per_hour(usd) for usd in ("0.06", "0.13", "0.2")
    }
    for key, row in rows.items():
        billed = sum(cost.usd.micro_usd for cost in row.costs.values())
        exact = row.price.of(metered[key]).micro_usd
        assert billed <= exact <= billed + 1
    check_books(run)


@pytest.mark.parametrize("seed", range(12))
def test_budget_and_invariants_hold_on_unexpected_machines(seed: int) -> None:
    rng = Random(seed)
    machines: dict[str, Offer | None] = {
        f"m{n}": offer(f"{rng.randrange(10_000, 3_000_000) / 10**6:.6f}", rng.choice(["spot", "on_demand"]))
        for n in range(3)
    }
    machines["unknown"] = None
    wanted = Resources(cpus=1, market=rng.choice(["spot", "spot_with_fallback", "on_demand"]))
    run = run_of(
        machines,
        wanted=wanted,
        seed=seed,
        concurrency=3,
        faults=Faults(crash=0.02, repeat=0.02, driver_restart=0.01, loss=0.02),
    )
    run_watched(run)
    check_books(run)


@pytest.mark.parametrize(
    ("offer", "wanted", "why"),
    [
        (
            offer("0.05"),
            Resources(market="spot"),
            "requested a spot machine, but Ray assigned a m on demand at \\$0.05",
        ),
        (None, ASKED, "price of the machine that Ray assigned is not known.*name=only"),
        (offer("0.05", kind="p5"), Resources(instance_type="g6"), "requested a g6, but Ray assigned a p5"),
        (offer("0.05", region="far"), Resources(region="near"), "requested region near, but .* in far"),
        (offer("0.05"), Resources(region="near"), "in an unknown region"),
    ],
)
def test_attempt_on_forbidden_machine_is_stopped_at_negligible_cost(
    offer: Offer | None, wanted: Resources, why: str
) -> None:
    run = run_of({"only": offer}, wanted=wanted, concurrency=1)
    run.run()
    tables = run.journal.tables
    assert not tables.reports
    assert tables.job[0] == "failed"
    rows = list(tables.attempts.values())
    assert {row.end for row in rows} == {"lost"}
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(rows[0].reason)
    # A message takes 2 ms to arrive. That time is billed at the price that was found, or at the price of the
    # hold.
    price = PRICE if offer is None else offer.price
    for row in rows:
        assert sum(cost.usd.micro_usd for cost in row.costs.values()) <= price.of(10_000_000).micro_usd
    assert rows[0].market == "on_demand"
    check_books(run)


def test_unaffordable_machine_ends_the_job_with_budget_usd() -> None:
    run = run_of({"only": offer("99999")}, usd="0.003", concurrency=1)
    run.run()
    assert run.journal.tables.job[:2] == ("failed", "budget_usd")
    assert not run.journal.tables.reports
    check_books(run)


def test_machine_check_allows_only_permitted_markets_and_types() -> None:
    spot, demand = offer("0.1", "spot"), offer("0.2")
    assert forbidden(demand, Resources(market="spot_with_fallback")) is None
    assert forbidden(spot, Resources(market="on_demand")) is None
    assert forbidden(demand, Resources(market="on_demand")) is None
    assert forbidden(spot, Resources(market="spot")) is None
    assert forbidden(demand, Resources(market="spot")) is not None
    assert forbidden(demand, Resources(instance_type="m")) is None
