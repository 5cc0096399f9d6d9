"""A job's events as they happen (server-sent events), from any event on.

`report` and `trial` tell what changed; the last message of each event carries its number as `id`, so that a reader who
comes back with `Last-Event-ID` misses nothing. `spend` and `job` tell how things stand: at the beginning, and whenever
that changed. The stream ends once the job has.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from tuner.api import present
from tuner.api.deps import Svc
from tuner.domain.errors import Invalid
from tuner.domain.job import FINAL
from tuner.service import answers
from tuner.service.answers import Changes
from tuner.service.wiring import Service

router = APIRouter(tags=["events"])
LOOK_S = 0.25
ALIVE_S = 15.0
STANDING = {
    "id",
    "state",
    "stop_reason",
    "detail",
    "budget",
    "tags",
    "priority",
    "revision",
    "progress",
    "best",
}


@router.get("/jobs/{job}/events", response_class=StreamingResponse)
async def stream_events(
    job: str,
    service: Svc,
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[int, Query(ge=0, lt=2**62)] = 0,
) -> StreamingResponse:
    """`report`, `trial`, `spend` and `job` events; `Last-Event-ID`, or `after`, goes on behind that event."""
    seq = after if last_event_id is None else _number(last_event_id)
    first = await asyncio.to_thread(answers.changes, service, job, seq)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_follow(service, job, first), media_type="text/event-stream", headers=headers)


async def _follow(service: Service, job: str, first: Changes) -> AsyncIterator[str]:
    changes, standing = first, _Standing()
    silent_s = 0.0
    yield "retry: 1000\n\n"
    while True:
        text = "".join([*told(changes), *standing.changed(changes)])
        if text:
            yield text
        if changes.view.row.state in FINAL and not changes.told.reports:
            return
        silent_s = 0.0 if text else silent_s + LOOK_S
        if silent_s >= ALIVE_S:
            yield ": still here\n\n"
            silent_s = 0.0
        if not changes.told.reports:
            await asyncio.sleep(LOOK_S)
        changes = await asyncio.to_thread(answers.changes, service, job, changes.told.seq)


class _Standing:
    """How money and job stood when they were last told."""

    def __init__(self) -> None:
        self._spend: dict[str, Any] = {}
        self._job: dict[str, Any] = {}

    def changed(self, changes: Changes) -> list[str]:
        shown = present.job_of(changes.view)
        spend = shown.spend.model_dump()
        job = shown.model_dump(include=STANDING)
        compared = {**job, "progress": {**job["progress"], "running_seconds": 0}}
        messages = []
        if spend != self._spend:
            messages.append(_message("spend", {**spend, "budget_usd": shown.budget["usd"]}))
        if compared != self._job:
            messages.append(_message("job", job))
        self._spend, self._job = spend, compared
        return messages


def told(changes: Changes) -> list[str]:
    """Messages in the order of their events; a report comes last, with its number, so that it is told once."""
    found = [(point.seq, 1, "report", _report(point)) for point in changes.told.reports]
    found += [(row.seq, 0, "trial", present.trial_of(row).model_dump()) for row in changes.told.trials]
    found.sort(key=lambda one: one[:2])
    numbers = [seq for seq, *_ in found] + [None]
    return [
        _message(kind, body, seq if numbers[index + 1] != seq else None)
        for index, (seq, _, kind, body) in enumerate(found)
    ]


def _report(point: answers.Reached) -> dict[str, Any]:
    shown = present.best_of(point).model_dump(exclude={"config", "checkpoint"})
    return {**shown, "seq": point.seq}


def _message(kind: str, body: dict[str, Any], seq: int | None = None) -> str:
    number = "" if seq is None else f"id: {seq}\n"
    return f"{number}event: {kind}\ndata: {json.dumps(body)}\n\n"


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise Invalid.at("Last-Event-ID", "must be the id of an event")
    return int(text)
