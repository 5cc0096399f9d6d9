"""Which migrations there are, from their files' own words: a service that starts on a database which is up to date needs no more, and
Alembic takes a tenth of a second to import."""

import re
from collections.abc import Mapping
from pathlib import Path

_WORDS = re.compile(r'^(revision|down_revision) = "(\w+)"', re.MULTILINE)


def known(migrations: Path) -> Mapping[str, str | None]:
    """Each revision, and the one before it."""
    files = (migrations / "versions").glob("[0-9]*.py")
    found = (dict(_WORDS.findall(file.read_text(encoding="utf-8"))) for file in files)
    return {one["revision"]: one.get("down_revision") for one in found}


def newest(migrations: Path) -> str:
    """The one that comes before no other."""
    found = known(migrations)
    (last,) = set(found) - set(found.values())
    return last
