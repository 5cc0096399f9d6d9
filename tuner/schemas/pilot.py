"""Request model of a pilot."""

from tuner.schemas.job import JobRequest
from tuner.schemas.plan import Pilot, Planning


class PilotPlanning(Planning):
    pilot: Pilot


class PilotRequest(JobRequest):
    planning: PilotPlanning
