"""The known migrations, read from the text of their files.

A service that starts on an up-to-date database needs only the newest revision. Reading it here avoids importing Alembic,
which takes a tenth of a second.
"""

import re
from collections.abc import Mapping
from pathlib import Path

_WORDS = re.compile(r'^(revision|down_revision) = "(\w+)"', re.MULTILINE)


def known(migrations: Path) -> Mapping[str, str | None]:
    """Return the previous revision of each known revision. It is None for the first."""
    files = (migrations / "versions").glob("[0-9]*.py")
    found = (dict(_WORDS.findall(file.read_text(encoding="utf-8"))) for file in files)
    return {one["revision"]: one.get("down_revision") for one in found}


def newest(migrations: Path) -> str:
    """Return the revision that no other follows."""
    found = known(migrations)
    (last,) = set(found) - set(found.values())
    return last
