"""The web page: static files that use REST and server-sent events like any other client."""

from pathlib import Path
from urllib.parse import quote

FOLDER = Path(__file__).parent / "static"


def ray_address(url: str, key: str, job: str) -> str:
    """Return the address that opens a job in Ray's dashboard, or the dashboard's overview if `job` is empty.

    A key that is not empty is put into the fragment of the address, as in `address`.
    """
    return f"{url}/#key={quote(key, safe='')}&ray={job}" if key else f"{url}/#/ray/{job}"


def address(url: str, key: str, job: str | None = None) -> str:
    """Return the address of the page, or of a job on the page, with the API key in the fragment.

    Browsers do not send the fragment to servers, and the page removes it from the address bar immediately.
    """
    at = "" if job is None else f"&job={job}"
    return f"{url}/#key={quote(key, safe='')}{at}"
