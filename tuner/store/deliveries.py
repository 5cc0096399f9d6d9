"""The outbox of webhook messages. Each message is recorded once, and is sent repeatedly until it is accepted or given up."""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select, update

from tuner.database.tables import deliveries
from tuner.domain.time import Instant

DeliveryState = Literal["pending", "delivered", "given_up"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message to a webhook."""

    id: str
    project: str
    name: str
    url: str
    body: str
    state: DeliveryState
    created_at: Instant
    next_at: Instant  #: When the next try is due.
    tries: int = 0
    answer: str = ""  #: The result of the last try.


def add(db: Connection, new: Delivery) -> bool:
    """Add the delivery. Return False if a delivery with the same id exists already."""
    if exists(db, new.id):
        return False
    row = {name: getattr(new, name) for name in Delivery.__slots__}
    db.execute(insert(deliveries).values(row))
    return True


def exists(db: Connection, delivery: str) -> bool:
    return db.execute(select(deliveries.c.id).where(deliveries.c.id == delivery)).first() is not None


def projects_due(db: Connection, at: Instant) -> list[str]:
    """Return the projects with pending deliveries whose next try is due."""
    d = deliveries.c
    query = select(d.project).where(d.state == "pending", d.next_at <= at).distinct()
    return list(db.execute(query.order_by(d.project)).scalars())


def due(db: Connection, project: str, at: Instant, *, limit: int) -> list[Delivery]:
    """Return up to `limit` of a project's pending deliveries whose next try is due, the earliest due time first."""
    d = deliveries.c
    query = select(deliveries).where(d.project == project, d.state == "pending", d.next_at <= at)
    return [_delivery(row) for row in db.execute(query.order_by(d.next_at, d.id).limit(limit))]


def of_budget(db: Connection, project: str, name: str, *, limit: int) -> list[Delivery]:
    """Return the deliveries of a shared budget, newest first."""
    d = deliveries.c
    query = select(deliveries).where(_mine(project, name)).order_by(d.created_at.desc(), d.id).limit(limit)
    return [_delivery(row) for row in db.execute(query)]


def claim(db: Connection, delivery: Delivery, *, next_at: Instant) -> bool:
    """Claim the delivery before sending it, and count one more try. Return False if it was claimed or ended since it was read.

    Args:
        next_at: When the delivery becomes due again if `record` is not called before. It must be later than the end of the request.
    """
    d = deliveries.c
    same = (d.id == delivery.id) & (d.state == "pending") & (d.tries == delivery.tries)
    values = {"tries": delivery.tries + 1, "next_at": next_at}
    return db.execute(update(deliveries).where(same).values(values)).rowcount == 1


def record(db: Connection, delivery: str, state: DeliveryState, answer: str, *, next_at: Instant) -> None:
    """Record the result of a try. Do nothing if the delivery has ended: the result of an earlier try may arrive late.

    Args:
        next_at: When the next try is due if the state is still `pending`.
    """
    d = deliveries.c
    pending = (d.id == delivery) & (d.state == "pending")
    db.execute(update(deliveries).where(pending).values(state=state, answer=answer, next_at=next_at))


def forget(db: Connection, project: str, name: str) -> None:
    db.execute(delete(deliveries).where(_mine(project, name)))


def _mine(project: str, name: str) -> ColumnElement[bool]:
    return (deliveries.c.project == project) & (deliveries.c.name == name)


def _delivery(row: Row[tuple[object, ...]]) -> Delivery:
    return Delivery(**row._mapping)
