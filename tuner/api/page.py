"""The page at `/`: static files, with headers that keep the page from loading anything from other hosts or sending anything there."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Files(StaticFiles):
    """Static files that browsers revalidate on every use, so that a new release is visible at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def install(app: FastAPI, folder: Path) -> None:
    """Serve the page. `folder` contains index.html, and under `static/` the files that index.html refers to."""

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(folder / "index.html", headers=HEADERS)

    app.mount("/static", Files(directory=folder), name="static")
