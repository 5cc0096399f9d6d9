"""Type checks of both clients as a user sees them. mypy reads this file in `make lint`; it is never run."""

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from tuner import AsyncClient, Client
from tuner.client import AsyncJob, AsyncTrial, Event, Job
from tuner.client import Trial as BoundTrial
from tuner.client.downloads import Downloaded
from tuner.schemas.answers import Bill, Trial
from tuner.schemas.best import BestAnswer


def at_once(client: Client) -> None:
    job = client.submit({"name": "digits"}, idempotency_key="mine")
    assert_type(job, Job)
    assert_type(job.name, str)
    assert_type(client.jobs(state="running"), Iterator[Job])
    assert_type(job.wait(timeout_s=60), Job)
    assert_type(job.best(max_cost_usd=1.0), BestAnswer)
    assert_type(client.best(job, max_cost_usd=1.0, market="spot"), BestAnswer)
    assert_type(client.bill(job.id), Bill)
    assert_type(job.trials(limit=3), Iterator[Trial])
    assert_type(job.trial("trial_00000"), BoundTrial)
    assert_type(job.trial("trial_00000").download("model"), Downloaded)
    for event in client.events(job):
        assert_type(event, Event)
    job.best(max_cost=1.0)  # type: ignore[call-arg]
    job.top_up(dollars=1)  # type: ignore[call-arg]
    client.bill(3)  # type: ignore[arg-type]


async def awaited(client: AsyncClient) -> None:
    job = await client.submit({"name": "digits"}, idempotency_key="mine")
    assert_type(job, AsyncJob)
    assert_type(job.name, str)
    assert_type(client.jobs(state="running"), AsyncIterator[AsyncJob])
    assert_type(await job.wait(timeout_s=60), AsyncJob)
    assert_type(await job.best(max_cost_usd=1.0), BestAnswer)
    assert_type(await client.best(job, max_cost_usd=1.0, market="spot"), BestAnswer)
    assert_type(await client.bill(job.id), Bill)
    assert_type(job.trials(limit=3), AsyncIterator[Trial])
    assert_type(await client.trial(job, "trial_00000"), AsyncTrial)
    async for event in client.events(job):
        assert_type(event, Event)
    job.best().config  # type: ignore[attr-defined]  # noqa: B018
