"""Models of uploaded packages."""

from tuner.schemas.base import Answer


class Package(Answer):
    """An uploaded package with trainables.

    `id` is `pkg_` followed by the SHA-256 of the archive; a job names it as its `package`. `bytes` is the size of the archive.
    """

    id: str
    name: str
    bytes: int
    files: int
    created_at: str


class PackagePage(Answer):
    items: list[Package]
    next_cursor: str | None
