"""The price catalogue that holds here: one that was named, one that was brought, or the shipped one."""

from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from tuner.domain.errors import BadFile
from tuner.planning.catalogue import Catalogue, read_catalogue
from tuner.settings import Settings

SHIPPED = "shipped with tuner"


def catalogue(settings: Settings) -> Catalogue:
    """TUNER_PRICES, else `$TUNER_HOME/prices.csv`, else the shipped one; read anew when the file has changed. Raises BadFile."""
    if settings.prices:
        return _of_file(Path(settings.prices), "TUNER_PRICES: ")
    if settings.prices_path.exists():
        return _of_file(settings.prices_path)
    return _shipped()


def _of_file(path: Path, said_by: str = "") -> Catalogue:
    try:
        stat = path.stat()
        return _read(path, f"{said_by}{path}", stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise BadFile(f"{said_by}{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFile(f"{said_by}{path} is no text in UTF-8") from error


@lru_cache(maxsize=8)
def _read(path: Path, name: str, mtime_ns: int, size: int) -> Catalogue:
    return read_catalogue(path.read_text(encoding="utf-8"), name)


@lru_cache(maxsize=1)
def _shipped() -> Catalogue:
    text = (files("tuner.planning") / "data" / "prices.csv").read_text(encoding="utf-8")
    return read_catalogue(text, SHIPPED)
