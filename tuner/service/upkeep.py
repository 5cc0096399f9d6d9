"""What is done to a database before services use it."""

from dataclasses import dataclass

from tuner.settings import Settings
from tuner.store.database import Database


@dataclass(frozen=True, slots=True)
class Migrated:
    """The revisions of the database's schema, before and after; `before` is None of a database that was empty."""

    before: str | None
    after: str | None


def migrate(settings: Settings) -> Migrated:
    """As a service does when it starts. Raises Unavailable where the database does not answer, or is newer than this code."""
    if not settings.database_url_file:
        settings.make_home()
    database = Database(settings.database_url, failpoint=settings.failpoint)
    try:
        before = database.revision()
        database.migrate()
        return Migrated(before, database.revision())
    finally:
        database.dispose()
