"""Calls about packages, which contain trainables: upload, list and get."""

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
    """Calls about packages. They raise ApiError with status 409 if packages are switched off in the service."""

    url: str

    @call
    def upload(self, path: str | Path, *, name: str | None = None) -> Steps[Package]:
        """Upload a package. A job uses it with `package: <id>`.

        Args:
            path: A .zip or .whl file, or a folder or .py file, which is packed first. Uploading the same files again returns the same
                package.
            name: The name of the package. None means that of the file or folder.

        Raises:
            ApiError: With status 422 if the path cannot be read or packed.
        """
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
        """Yield the packages, newest first. Pages are fetched as needed."""
        from tuner.schemas.packages import PackagePage

        return pages(self.url, PackagePage, "/v1/packages", {}, page=PAGE)

    @call
    def package(self, package: str) -> Steps[Package]:
        """Return a package by its id."""
        from tuner.schemas.packages import Package

        return (yield from ask(self.url, Package, "GET", f"/v1/packages/{quoted(package)}"))
