"""End a process at every commit, let the next process continue, and check the database from outside.

    python -m tests.failpoints.matrix sqlite FOLDER
    python -m tests.failpoints.matrix URL FOLDER        with copies of this PostgreSQL database
    python -m tests.failpoints.matrix sqlite FOLDER job.submit driver.turn      only at these commits

One process imports everything and forks the others.
"""

import gc
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg

from tests import fakes
from tests.failpoints import outside
from tests.failpoints.chapters import CHAPTERS, EMPTY
from tests.failpoints.life import Earlier, Life, surroundings
from tuner.store.database import Database
from tuner.store.failpoints import FAILPOINTS, SIDES, STATUS

CORES = 2
LATER_S = 6 * 3600
LIMIT_S = 120
# The number of turns of a driver to end at: the first, the last, and some in between at equal distances.
TURNS = 6
# Chapters that run most of the code.
WARMING = ("queue", "limits", "people", "restored")


@dataclass
class Told:
    """The exit status of a process, and the messages it sent until it ended."""

    status: int
    words: list[list[Any]] = field(default_factory=list)

    def of(self, kind: str) -> list[list[Any]]:
        return [rest for name, *rest in self.words if name == kind]


class Databases:
    """Copies of one migrated database, each with a home directory.

    Args:
        url: "sqlite", or the URL of a PostgreSQL database to migrate and copy. Nothing else may be connected to it.
        folder: Where the home directories are.
    """

    def __init__(self, url: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        template = Database(f"sqlite:///{folder}/template.db" if url == "sqlite" else url)
        template.migrate()
        template.dispose()
        self._template, self._is_sqlite = template.url, template.is_sqlite

    @contextmanager
    def fresh(self, *, empty: bool) -> Iterator[tuple[str, Path]]:
        home = Path(tempfile.mkdtemp(prefix="home-", dir=self._folder))
        if self._is_sqlite:
            if not empty:
                shutil.copyfile(str(self._template.database), home / "tuner.db")
            yield f"sqlite:///{home}/tuner.db", home
        else:
            source = "template0" if empty else self._template.database
            self._run(f'CREATE DATABASE "{home.name}" TEMPLATE "{source}"')
            yield self._url(home.name), home
            self._run(f'DROP DATABASE "{home.name}" WITH (FORCE)')
        shutil.rmtree(home)

    def _url(self, name: str) -> str:
        url = self._template.set(drivername="postgresql", database=name)
        return url.render_as_string(hide_password=False)

    def _run(self, statement: str) -> None:
        """Run a statement outside of a transaction, connected to neither the template nor a copy of it."""
        with psycopg.connect(self._url("postgres"), autocommit=True) as db:
            db.execute(statement)


def process(chapter: str, url: str, home: Path, failpoint: str, earlier: Earlier, late_s: int) -> Told:
    """Run a chapter in a forked process, and return what it sent."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        _child(chapter, url, home, failpoint, earlier, late_s, writes)
    os.close(writes)
    with os.fdopen(reads) as told:
        words = [json.loads(line) for line in told]
    _, status = os.waitpid(pid, 0)
    return Told(os.waitstatus_to_exitcode(status), words)


def _child(
    chapter: str, url: str, home: Path, failpoint: str, earlier: Earlier, late_s: int, writes: int
) -> None:
    def tell(*words: Any) -> None:
        os.write(writes, (json.dumps(words) + "\n").encode())

    write = Database.write

    def passing(database: Database, name: str = "") -> Any:
        tell("passed", name)
        return write(database, name)

    status = 1
    signal.alarm(LIMIT_S)
    try:
        with surroundings(tell), patch.object(Database, "write", passing):
            life = Life(url, home, failpoint, earlier, tell, late_s)
            CHAPTERS[chapter](life)
            life.tell_all()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _warm(databases: Databases, chapter: str) -> None:
    """Run a chapter in this process, so that forked processes inherit what is built at first use."""

    def tell(*_: Any) -> None:
        return

    with databases.fresh(empty=False) as (url, home), surroundings(tell):
        life = Life(url, home, "", Earlier(), tell, 0)
        CHAPTERS[chapter](life)
        life.tell_all()
        life.service.database.dispose()


def story(databases: Databases, chapter: str, failpoint: str) -> tuple[list[Told], outside.Found]:
    """Run a chapter. If a failpoint is given, the first process ends there and a second one completes the chapter."""
    with databases.fresh(empty=chapter in EMPTY) as (url, home):
        told = [process(chapter, url, home, failpoint, Earlier(), 0)]
        if failpoint:
            earlier = Earlier(
                {step: name for step, name in told[0].of("ack")},
                [name for (name,) in told[0].of("submitted")],
            )
            told.append(process(chapter, url, home, "", earlier, LATER_S))
        words = [word for one in told for word in one.words]
        return told, outside.look(url, words)


def at_once(databases: Databases, plots: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Run each chapter with its failpoint, as many at once as there are cores."""
    with multiprocessing.get_context("fork").Pool(CORES) as pool:
        return pool.starmap(_told_story, [(databases, *plot) for plot in plots], chunksize=1)


def _told_story(databases: Databases, chapter: str, failpoint: str) -> dict[str, Any]:
    told, seen = story(databases, chapter, failpoint)
    statuses = [one.status for one in told]
    is_right = statuses == ([STATUS, 0] if failpoint else [0]) and not seen.wrong
    return {
        "passed": Counter(name for one in told for (name,) in one.of("passed")),
        "figures": Counter(crashes=statuses.count(STATUS), **seen.figures),
        "wrong": [] if is_right else [f"{chapter} {failpoint}: {statuses}: {seen.wrong}"],
    }


def points(passed: dict[str, Counter[str]]) -> Iterator[tuple[str, str]]:
    """Yield chapter and failpoint for each name, in the first chapter that passes it."""
    for name in FAILPOINTS:
        chapter = next((chapter for chapter in CHAPTERS if passed[chapter][name]), None)
        if chapter is None:
            continue
        last = passed[chapter][name]
        numbers = {1}
        if name == "driver.turn":
            numbers = {1 + (last - 1) * part // (TURNS - 1) for part in range(TURNS)}
        for number in sorted(numbers):
            for side in SIDES:
                yield chapter, f"{name}:{side}:{number}"


def main(url: str, folder: str, *only: str) -> None:
    began = time.monotonic()
    fakes.shared_app()
    databases = Databases(url, Path(folder))
    for chapter in WARMING:
        _warm(databases, chapter)
    gc.disable()  # Each process lives for about a second.
    gc.freeze()
    calm = at_once(databases, [(chapter, "") for chapter in CHAPTERS])
    every = list(points({chapter: one["passed"] for chapter, one in zip(CHAPTERS, calm, strict=True)}))
    plots = [plot for plot in every if not only or plot[1].startswith(tuple(f"{name}:" for name in only))]
    found = at_once(databases, plots)
    names = {failpoint.partition(":")[0] for _, failpoint in plots}
    figures = sum((one["figures"] for one in found), Counter[str]())
    print(
        json.dumps(
            {
                "failpoints": len(names),
                "not_passed": sorted(set(only or FAILPOINTS) - names),
                **{name: figures[name] for name in ("crashes", *outside.FIGURES)},
                "seconds": round(time.monotonic() - began, 1),
                "wrong": [what for one in (*calm, *found) for what in one["wrong"]],
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
