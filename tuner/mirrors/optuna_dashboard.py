"""optuna-dashboard under a path of the service. It knows the root alone, so its page and script are told the path as they are served."""

import gzip
from collections.abc import Callable, Iterable
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it takes a fifth of a second to import, and is not needed before somebody asks
    from optuna.storages import RDBStorage

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_INDEX = 'src="/static/bundle.js"'
# Where its script has the root: the routes of its pages, its requests, and its links to downloads.
_SCRIPT = ('url_prefix:"/dashboard"', "`${this.baseURL}/api", "`/csv/")


class OptunaDashboard:
    """May be used from several threads. Its storage is opened when it is first asked for."""

    def __init__(self, url: str, path: str) -> None:
        self._url, self._path = url, path
        self._opening = Lock()
        self._storage: RDBStorage | None = None

    def study(self, name: str, job: str) -> int | None:
        """The number of the job's study; None where nothing of the job is mirrored yet. Raises whatever its database raises."""
        from tuner.mirrors.optuna import study_name

        try:
            return self._opened().get_study_id_from_name(study_name(name, job))
        except KeyError:
            return None

    @cached_property
    def wsgi(self) -> Wsgi:
        """What answers its requests for data. Raises whatever its database raises."""
        from optuna_dashboard import wsgi

        made: Wsgi = wsgi(self._opened())
        return made

    @cached_property
    def index(self) -> bytes:
        """Its page. Raises ValueError for a release that is built in another way."""
        text = (_folder() / "index.html").read_text()
        _check(text, (_INDEX,))
        script = f"{self._path}/static/bundle.js?{version('optuna-dashboard')}"
        return text.replace(_INDEX, f'src="{script}"').encode()

    @cached_property
    def script(self) -> bytes:
        """Its script, compressed by gzip. Raises ValueError for a release that is built in another way."""
        text = (_folder() / "public" / "bundle.js").read_text()
        _check(text, _SCRIPT)
        at = self._path
        for words, told in zip(
            _SCRIPT, (f'url_prefix:"{at}/dashboard"', f"`{at}/api", f"`{at}/csv/"), strict=True
        ):
            text = text.replace(words, told)
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
        raise ValueError("optuna-dashboard is not installed")
    return Path(spec.origin).parent


def _check(text: str, words: Iterable[str]) -> None:
    if any(one not in text for one in words):
        raise ValueError(
            f"optuna-dashboard {version('optuna-dashboard')} cannot be mounted; install one from 0.21 on, before 0.22"
        )
