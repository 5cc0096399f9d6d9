"""Find which service leads, and which versions the drivers of running jobs have.

Operators check both before an upgrade.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from tuner.database.database import Connection
from tuner.domain.time import Instant, rfc3339
from tuner.service.bootstrap import Service
from tuner.service.leading import ROLE, Term
from tuner.settings import release
from tuner.store import launches, leadership
from tuner.store.launches import Launch

NAMED = 5


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Which service leads, and the drivers that run."""

    term: Term | None  #: The newest term; None if no service has led yet.
    lasts: bool  #: Whether that term still lasts, so that a service leads.
    drivers: tuple[Launch, ...]  #: The drivers of running jobs.


def standing(db: Connection, now: Instant) -> ReplicaStatus:
    term = leadership.get(db, ROLE)
    lasts = term is not None and term.lasts(leadership.clock(db, now))
    return ReplicaStatus(term, lasts, tuple(one for one in launches.live(db) if one.state == "running"))


def is_led(service: Service) -> bool:
    """Return whether any service leads. Raise Unavailable if the database does not answer."""
    with service.database.read() as db:
        return standing(db, service.now()).lasts


def said_of_leader(found: ReplicaStatus) -> str:
    term = found.term
    if term is None:
        return "no service has led yet"
    who = f"{term.holder}, tuner {term.version}"
    if found.lasts:
        return f"{who}, leads since {rfc3339(term.since)}, by term {term.token}"
    return f"nobody leads; {who}, did by term {term.token}, from {rfc3339(term.since)} on"


def said_of_drivers(found: ReplicaStatus) -> str:
    """Return a text about the running drivers. It names drivers of another version; their jobs continue nevertheless."""
    others = [one for one in found.drivers if not _is_ours(one)]
    total = f"{len(found.drivers)} at work"
    if not others:
        return f"{total}, all of tuner {release()}" if found.drivers else total
    return f"{total}, of another version, which go on: {_named(others)}"


def _is_ours(one: Launch) -> bool:
    return (one.tuner_version, one.ray_version) == (release(), version("ray"))


def _named(others: Sequence[Launch]) -> str:
    said = [f"{one.job} (tuner {one.tuner_version or '?'}, Ray {one.ray_version or '?'})" for one in others]
    more = [f"and {len(said) - NAMED} more"] if len(said) > NAMED else []
    return ", ".join([*said[:NAMED], *more])
