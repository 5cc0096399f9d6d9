"""Compile each SQL statement once per process, instead of once per `Database`.

Importing this module has the effect. SQLAlchemy keeps compiled statements by engine and dialect object, and nearly every test opens
a database of its own. Compiling its statements again took up to half of the processor time of a test.
"""

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.util import LRUCache


class Statements(LRUCache[Any, Any]):
    """The compiled statements of all engines, kept by the name of the dialect and its driver."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_without_engine(key), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(_without_engine(key), compiled)


def _without_engine(key: Any) -> Any:
    """Replace the dialect object of an engine, with which SQLAlchemy's keys begin."""
    dialect, *statement = key
    return (dialect.name, dialect.driver, *statement)


_STATEMENTS = Statements(10_000)
_prepare = Engine.__init__


def _share(engine: Engine, *args: Any, **options: Any) -> None:
    _prepare(engine, *args, **options)
    engine._compiled_cache = _STATEMENTS


Engine.__init__ = _share  # type: ignore[method-assign]
