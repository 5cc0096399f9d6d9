"""Packages with trainables, as they are shown."""

from tuner.schemas.base import Answer


class Package(Answer):
    """`id` is `pkg_` and the SHA-256 of its bytes, which a job names as its `package`. `bytes` is the size of the archive."""

    id: str
    name: str
    bytes: int
    files: int
    created_at: str


class PackagePage(Answer):
    items: list[Package]
    next_cursor: str | None
