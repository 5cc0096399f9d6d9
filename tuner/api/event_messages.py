"""A job's events as server-sent events.

`report` and `trial` messages contain a change. The last message of each event carries the event's number as `id`, so that a client that
reconnects with `Last-Event-ID` misses nothing. `spend` and `job` messages contain the present state.
"""

import asyncio
import json
from typing import Any

from tuner.api import present
from tuner.api.hub import BEGIN, Look, Piece
from tuner.domain.job import FINAL
from tuner.service import answers
from tuner.service.answers import Told
from tuner.service.views import JobView
from tuner.service.wiring import Service

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


class Record:
    """The events of one job. Implements the hub's `Source`."""

    def __init__(self, service: Service, job: str) -> None:
        self._service, self._job = service, job

    async def look(self, after: int | None) -> Look:
        return await asyncio.to_thread(self._look, after)

    async def gap(self, after: int, until: int) -> Piece:
        return await asyncio.to_thread(lambda: told(answers.told(self._service, self._job, after, until)))

    async def newest(self) -> int:
        return await asyncio.to_thread(answers.newest, self._service, self._job)

    def whole(self, after: int) -> bytes:
        """Return all messages after an event, and the present state, of a job that has ended.

        Return nothing if there are more events than are read at once.
        """
        found = answers.changes(self._service, self._job, after)
        if found.told.more:
            return b""
        stand = "".join(message for _, message in standing(found.view).values())
        return BEGIN + (told(found.told).after(after) + stand).encode()

    def _look(self, after: int | None) -> Look:
        seq = answers.newest(self._service, self._job) if after is None else after
        found = answers.changes(self._service, self._job, seq)
        piece = Piece(seq, []) if after is None else told(found.told)
        ended = found.view.row.state in FINAL and (after is not None or found.told.seq == seq)
        return Look(piece, standing(found.view), ended)


def standing(view: JobView) -> dict[str, tuple[object, str]]:
    """Return the `spend` and `job` messages of the present state, each with the value that is compared to find changes.

    The comparison ignores the running time; otherwise every running job would change all the time.
    """
    shown = present.job_of(view)
    spend = {**shown.spend.model_dump(), "budget_usd": shown.budget["usd"]}
    job = shown.model_dump(include=STANDING)
    compared = {**job, "progress": {**job["progress"], "running_seconds": 0}}
    return {"spend": (spend, _message("spend", spend)), "job": (compared, _message("job", job))}


def told(found: Told) -> Piece:
    """Return messages in the order of their events.

    Only the last message of an event has its number as `id`, and a report comes after the trial of the same event. A client that
    reconnects therefore gets no report twice.
    """
    parts = [(point.seq, 1, "report", _report(point)) for point in found.reports]
    parts += [(row.seq, 0, "trial", present.trial_of(row).model_dump()) for row in found.trials]
    parts.sort(key=lambda one: one[:2])
    numbers = [seq for seq, *_ in parts] + [None]
    messages = [
        (seq, _message(kind, body, seq if numbers[index + 1] != seq else None))
        for index, (seq, _, kind, body) in enumerate(parts)
    ]
    return Piece(found.seq, messages, found.more)


def _report(point: answers.Reached) -> dict[str, Any]:
    shown = present.best_of(point).model_dump(exclude={"config", "checkpoint"})
    return {**shown, "seq": point.seq}


def _message(kind: str, body: dict[str, Any], seq: int | None = None) -> str:
    number = "" if seq is None else f"id: {seq}\n"
    return f"{number}event: {kind}\ndata: {json.dumps(body)}\n\n"
