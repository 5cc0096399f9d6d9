"""Packages with trainables: uploaded, listed, looked up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tuner.client.http import ApiError, ask, quoted
from tuner.client.methods import call, series
from tuner.client.paging import pages
from tuner.client.steps import Series, Steps
from tuner.schemas.problem import Problem

if TYPE_CHECKING:
    from tuner.schemas.packages import Package

PAGE = 100


class Uploads:
    """Everything raises ApiError: 409 where packages are switched off."""

    url: str

    @call
    def upload(self, path: str | Path, *, name: str | None = None) -> Steps[Package]:
        """A .zip or .whl, or a folder or .py file, which is packed: the same files are the same package, however often. A job names it by
        `package: <id>`."""
        from tuner.client.packing import packed
        from tuner.schemas.packages import Package

        try:
            own, data = packed(Path(path))
        except (OSError, ValueError) as error:
            raise ApiError(Problem(title="This is no package", status=422, detail=str(error))) from error
        query = {"name": name or own}
        return (
            yield from ask(self.url, Package, "POST", "/v1/packages", query=query, data=data, repeat=True)
        )

    @series
    def packages(self) -> Series[Package]:
        """Newest first, page by page."""
        from tuner.schemas.packages import PackagePage

        return pages(self.url, PackagePage, "/v1/packages", {}, page=PAGE)

    @call
    def package(self, package: str) -> Steps[Package]:
        """By its id."""
        from tuner.schemas.packages import Package

        return (yield from ask(self.url, Package, "GET", f"/v1/packages/{quoted(package)}"))
