"""A job's events as they happen, from any event on."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from tuner.api.deps import Svc
from tuner.api.event_messages import Record
from tuner.domain.errors import Invalid
from tuner.service import answers

router = APIRouter(tags=["events"])


@router.get("/jobs/{job}/events", response_class=StreamingResponse)
async def stream_events(
    job: str,
    request: Request,
    service: Svc,
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[int, Query(ge=0, lt=2**62)] = 0,
) -> StreamingResponse:
    """`report`, `trial`, `spend` and `job` events; `Last-Event-ID`, or `after`, goes on behind that event. The stream ends once the
    job has; to a reader that is too slow for it, earlier: who comes back misses nothing."""
    seq = after if last_event_id is None else _number(last_event_id)
    await asyncio.to_thread(answers.check_exists, service, job)
    stream = request.app.state.hub.follow((service.database, job), Record(service, job), seq)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise Invalid.at("Last-Event-ID", "must be the id of an event")
    return int(text)
