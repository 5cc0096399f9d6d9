"""A pilot as it is asked for."""

from pydantic import Field

from tuner.schemas.base import Request
from tuner.schemas.job import JobRequest


class Pilot(Request):
    """A budget of its own, at least one of `usd` and `gpu_hours`, and at most how many configurations are trained for how many steps;
    one of four goes on three times as far."""

    usd: float | None = None
    gpu_hours: float | None = None
    trials: int = 12
    steps: int = 2


class PilotPlanning(Request):
    pilot: Pilot


class PilotRequest(JobRequest):
    planning: PilotPlanning = Field(default=...)
