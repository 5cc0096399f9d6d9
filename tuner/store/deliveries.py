"""What is to be told to others: each message once in the outbox, sent until it is taken or given up."""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select, update

from tuner.domain.time import Instant
from tuner.store.budget_tables import deliveries

DeliveryState = Literal["pending", "delivered", "given_up"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """`answer` is what came of the last try; `next_at` when the next is due."""

    id: str
    project: str
    name: str
    url: str
    body: str
    state: DeliveryState
    created_at: Instant
    next_at: Instant
    tries: int = 0
    answer: str = ""


def add(db: Connection, new: Delivery) -> bool:
    """False where there is one of this id already."""
    if exists(db, new.id):
        return False
    row = {name: getattr(new, name) for name in Delivery.__slots__}
    db.execute(insert(deliveries).values(row))
    return True


def exists(db: Connection, delivery: str) -> bool:
    return db.execute(select(deliveries.c.id).where(deliveries.c.id == delivery)).first() is not None


def projects_due(db: Connection, at: Instant) -> list[str]:
    """Return the projects with deliveries that are due."""
    d = deliveries.c
    query = select(d.project).where(d.state == "pending", d.next_at <= at).distinct()
    return list(db.execute(query.order_by(d.project)).scalars())


def due(db: Connection, project: str, at: Instant, *, limit: int) -> list[Delivery]:
    """Return a project's deliveries that are due, the longest due first."""
    d = deliveries.c
    query = select(deliveries).where(d.project == project, d.state == "pending", d.next_at <= at)
    return [_delivery(row) for row in db.execute(query.order_by(d.next_at, d.id).limit(limit))]


def of_budget(db: Connection, project: str, name: str, *, limit: int) -> list[Delivery]:
    """Newest first."""
    d = deliveries.c
    query = select(deliveries).where(_mine(project, name)).order_by(d.created_at.desc(), d.id).limit(limit)
    return [_delivery(row) for row in db.execute(query)]


def claim(db: Connection, one: Delivery, *, next_at: Instant) -> bool:
    """Before it is sent: a try counts, and the next is put off. False where another process has it."""
    d = deliveries.c
    same = (d.id == one.id) & (d.state == "pending") & (d.tries == one.tries)
    values = {"tries": one.tries + 1, "next_at": next_at}
    return db.execute(update(deliveries).where(same).values(values)).rowcount == 1


def end(db: Connection, delivery: str, state: DeliveryState, answer: str) -> None:
    d = deliveries.c
    db.execute(update(deliveries).where(d.id == delivery).values(state=state, answer=answer))


def forget(db: Connection, project: str, name: str) -> None:
    db.execute(delete(deliveries).where(_mine(project, name)))


def _mine(project: str, name: str) -> ColumnElement[bool]:
    return (deliveries.c.project == project) & (deliveries.c.name == name)


def _delivery(row: Row[tuple[object, ...]]) -> Delivery:
    return Delivery(**row._mapping)
