"""The records of uploaded packages: archives with the code of trainables."""

from dataclasses import dataclass

from sqlalchemy import Connection, Row, insert, select, tuple_
from sqlalchemy.exc import IntegrityError

from tuner.database.tables import packages
from tuner.domain.ids import package_id
from tuner.domain.time import Instant


@dataclass(frozen=True, slots=True)
class PackageRow:
    sha256: str
    name: str
    size_bytes: int  #: Size of the archive.
    files: int
    created_at: Instant

    @property
    def id(self) -> str:
        return package_id(self.sha256)


def put(db: Connection, project: str, new: PackageRow) -> tuple[PackageRow, bool]:
    """Record a package. Return the record, and whether it is new.

    If a package with the same bytes is already recorded, change nothing and return its record, which may have another name.
    """
    if (known := get(db, project, new.sha256)) is not None:
        return known, False
    row = {"sha256": new.sha256, "name": new.name, "files": new.files, "created_at": new.created_at}
    try:
        with db.begin_nested():
            db.execute(insert(packages).values(project=project, bytes=new.size_bytes, **row))
    except IntegrityError:  # another request uploads the same package
        known = get(db, project, new.sha256)
        if known is None:
            raise
        return known, False
    return new, True


def get(db: Connection, project: str, sha256: str) -> PackageRow | None:
    p = packages.c
    row = db.execute(select(packages).where((p.project == project) & (p.sha256 == sha256))).first()
    return None if row is None else _package(row)


def versions(db: Connection, project: str, sha256: str) -> list[str]:
    """Return the digests of all packages that have the same name as this one, including its own. Empty if it does not exist."""
    p = packages.c
    name = select(p.name).where((p.project == project) & (p.sha256 == sha256)).scalar_subquery()
    return list(db.scalars(select(p.sha256).where((p.project == project) & (p.name == name))))


def names(db: Connection, project: str) -> dict[str, str]:
    """Return the name of each package of the project, by its digest."""
    p = packages.c
    return {row.sha256: row.name for row in db.execute(select(p.sha256, p.name).where(p.project == project))}


def page(db: Connection, project: str, *, before: tuple[int, str] | None, limit: int) -> list[PackageRow]:
    """Return one page of a project's packages, newest first.

    Args:
        before: `(created_at, sha256)` of the last package of the previous page.
    """
    p = packages.c
    query = select(packages).where(p.project == project)
    if before is not None:
        query = query.where(tuple_(p.created_at, p.sha256) < before)
    rows = db.execute(query.order_by(p.created_at.desc(), p.sha256.desc()).limit(limit))
    return [_package(row) for row in rows]


def _package(row: Row[tuple[object, ...]]) -> PackageRow:
    return PackageRow(row.sha256, row.name, row.bytes, row.files, Instant(row.created_at))
