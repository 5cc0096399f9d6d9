"""Serve optuna-dashboard under a path of the service.

optuna-dashboard works only under the root path. The service's path is therefore inserted into its page and its script.
"""

import gzip
from collections.abc import Callable, Iterable
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing it takes 0.2 s, and it is not needed before the first request
    from optuna.storages import RDBStorage


Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
# The place in the dashboard's page that contains the root path.
_INDEX = 'src="/static/bundle.js"'
# The places in the dashboard's script that contain the root path: its routes, requests and download links.
_SCRIPT = ('url_prefix:"/dashboard"', "`${this.baseURL}/api", "`/csv/")


class OptunaDashboard:
    """The dashboard of one Optuna storage. It may be used from several threads. The storage is opened at first use.

    Args:
        url: The database URL of the storage.
        path: The path of the service under which the dashboard is served.
    """

    def __init__(self, url: str, path: str) -> None:
        self._url, self._path = url, path
        self._opening = Lock()
        self._storage: RDBStorage | None = None

    def study(self, name: str, job: str) -> int | None:
        """Return the number of the job's study, or None if the job is not mirrored yet.

        Exceptions of the database are passed on to the caller.
        """
        from tuner.mirrors.optuna import study_name

        try:
            return self._opened().get_study_id_from_name(study_name(name, job))
        except KeyError:
            return None

    @cached_property
    def wsgi(self) -> Wsgi:
        """The WSGI application that answers the dashboard's data requests. Exceptions of the database are passed on to the caller."""
        from optuna_dashboard import wsgi

        made: Wsgi = wsgi(self._opened())
        return made

    @cached_property
    def index(self) -> bytes:
        """The dashboard's page, with the path inserted.

        Raises ValueError if the page of the installed optuna-dashboard lacks the text that the path replaces.
        """
        text = (_folder() / "index.html").read_text()
        _check(text, (_INDEX,))
        script = f"{self._path}/static/bundle.js?{version('optuna-dashboard')}"
        return text.replace(_INDEX, f'src="{script}"').encode()

    @cached_property
    def script(self) -> bytes:
        """The dashboard's script, with the path inserted and compressed by gzip.

        Raises ValueError if the script of the installed optuna-dashboard lacks one of the texts that the path replaces.
        """
        text = (_folder() / "public" / "bundle.js").read_text()
        _check(text, _SCRIPT)
        at = self._path
        for words, replacement in zip(
            _SCRIPT, (f'url_prefix:"{at}/dashboard"', f"`{at}/api", f"`{at}/csv/"), strict=True
        ):
            text = text.replace(words, replacement)
        return gzip.compress(text.encode(), compresslevel=6)

    def _opened(self) -> "RDBStorage":
        from tuner.mirrors.optuna import open_storage

        with self._opening:
            if self._storage is None:
                self._storage = open_storage(self._url)
            return self._storage


def _folder() -> Path:
    spec = find_spec("optuna_dashboard")
    if spec is None or spec.origin is None:
        raise ValueError("optuna-dashboard is not installed: pip install 'tuner[dashboards]'")
    return Path(spec.origin).parent


def _check(text: str, words: Iterable[str]) -> None:
    if any(word not in text for word in words):
        raise ValueError(
            f"optuna-dashboard {version('optuna-dashboard')} cannot be mounted; install a version from 0.21 up to, but not including, 0.22"
        )
