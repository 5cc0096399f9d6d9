"""Test what an attempt's begin message takes from its assignment, and from the machines and losses of the moment."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.simulation.test_simulated_jobs import spec
from tests.store.builders import OFFER
from tuner.domain.checkpointing import Losses
from tuner.domain.job import JobSpec, Resources
from tuner.domain.objective import Constraint, Objective
from tuner.driver.actuator import (
    FRESH_S,
    READ_FRESH_S,
    USABLE_MEMORY,
    BeginMessages,
    MemoryLimit,
    RecentRead,
)
from tuner.driver.ports import Assignment
from tuner.training.channel import MAX_JOB_METRICS_BYTES

HEAD = {"Alive": True, "Resources": {"memory": 8e9}}
SMALL = {"Alive": True, "Resources": {"CPU": 2, "memory": 4e9}}
LARGE = {"Alive": True, "Resources": {"CPU": 2, "memory": 16e9}}


def test_memory_limit_follows_nodes_that_join_later() -> None:
    there: list[Mapping[str, Any]] = [HEAD]
    now, asked, is_away = 0.0, 0, False

    def nodes() -> list[Mapping[str, Any]]:
        nonlocal asked
        asked += 1
        if is_away:
            raise RuntimeError("the head is away")
        return there

    limit = MemoryLimit(nodes, Resources(cpus=1), lambda: now)
    assert limit() is None
    there.append(SMALL)
    assert limit() is None
    now += FRESH_S
    assert limit() == limit() == 2e9 * USABLE_MEMORY
    assert asked == 2
    there.append(LARGE)
    now += FRESH_S
    assert limit() == 8e9 * USABLE_MEMORY
    is_away, now = True, now + FRESH_S
    assert limit() == 8e9 * USABLE_MEMORY


def test_losses_of_a_market_are_read_again_after_a_while() -> None:
    now, asked = 0.0, list[str]()

    def read(market: str) -> Losses:
        asked.append(market)
        return Losses(len(asked))

    losses = RecentRead(read, lambda: now)
    assert losses("spot") == losses("spot") == Losses(1)
    assert losses("on_demand") == Losses(2)
    now += READ_FRESH_S
    assert losses("spot") == Losses(3)
    assert asked == ["spot", "on_demand", "spot"]


def begin_message(job: JobSpec, seed: int = 0, metrics_bytes: int = 0) -> Mapping[str, Any]:
    row: Any = SimpleNamespace(spec=job, id="job_1", project="p", offer=OFFER)
    messages = BeginMessages(
        row,
        "",
        lambda: None,
        lambda _: None,
        lambda *_: None,
        lambda _: Losses(),
        lambda _: 0,
        lambda: metrics_bytes,
    )
    return messages.begin(Assignment("trial_00000", 1, {}, 27, 1, None, seed=seed))


def test_repeat_is_seeded_differently_from_the_trial_that_it_repeats() -> None:
    assert [begin_message(spec(seed=40), seed)["seed"] for seed in (0, 2)] == [40, 42]


def test_worker_receives_the_room_that_the_job_has_left_for_metrics() -> None:
    rooms = [begin_message(spec(), metrics_bytes=size)["metrics_room"] for size in (0, 1000, 2 << 30)]
    assert rooms == [MAX_JOB_METRICS_BYTES, MAX_JOB_METRICS_BYTES - 1000, 0]


def test_worker_receives_the_metrics_of_serving_that_the_job_needs() -> None:
    limits = (Constraint("recall", min=0.5), Constraint("usd_per_million", max=1))
    assert begin_message(replace(spec(), constraints=limits))["serving_metrics"] == ("usd_per_million",)
    fastest = replace(spec(), objective=Objective("latency_ms", "min"))
    assert begin_message(fastest)["serving_metrics"] == ("latency_ms",)
    second = replace(spec(), second=Objective("latency_ms", "min"))
    assert begin_message(second)["serving_metrics"] == ("latency_ms",)
    assert begin_message(spec())["serving_metrics"] == ()


def test_price_of_serving_and_risk_are_those_of_one_and_of_all_nodes() -> None:
    single, several = begin_message(spec()), begin_message(replace(spec(), resources=Resources(nodes=4)))
    assert several["usd_per_hour"] == single["usd_per_hour"], "a model is served on one machine"
    assert several["exposure"].crash.mean_ns == single["exposure"].crash.mean_ns // 4
