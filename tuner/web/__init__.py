"""The page: static files that speak REST and server-sent events like any other client."""

from pathlib import Path
from urllib.parse import quote

FOLDER = Path(__file__).parent / "static"


def ray_address(url: str, key: str, job: str) -> str:
    """Return the address that leads a browser to a job in Ray's dashboard, or to its overview if `job` is empty."""
    return f"{url}/#key={quote(key, safe='')}&ray={job}" if key else f"{url}/#/ray/{job}"


def address(url: str, key: str, job: str | None = None) -> str:
    """Where the page is, or a job on it, with the key behind the #, which no browser sends and the page takes away at once."""
    at = "" if job is None else f"&job={job}"
    return f"{url}/#key={quote(key, safe='')}{at}"
