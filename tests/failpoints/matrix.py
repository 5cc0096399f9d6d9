"""End a process at every commit, let the next process continue, and check the database from outside.

    echo '{"url": "sqlite"}' | python -m tests.failpoints.matrix FOLDER
    echo '{"url": "sqlite", "names": ["job.submit", "driver.turn"]}' | python -m tests.failpoints.matrix FOLDER

Each line of standard input is answered with a line of figures. The keys are the arguments of `crashes`. One process
imports everything and forks the others.
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

from tests import fakes, statements  # noqa: F401  # `statements` shares compiled SQL
from tests.failpoints import outside
from tests.failpoints.chapters import CHAPTERS, EMPTY
from tests.failpoints.life import Earlier, Life, Tell, surroundings
from tuner.database.database import Database
from tuner.database.failpoints import FAILPOINTS, SIDES, STATUS

CORES = 2
LATER_S = 6 * 3600
LIMIT_S = 120
# The number of turns of a driver to end at: the first, the last, and some in between at equal distances.
TURNS = 6


@dataclass
class ProcessMessages:
    """The exit status of a process, and the messages it sent until it ended."""

    status: int
    messages: list[list[Any]] = field(default_factory=list)

    def of(self, kind: str) -> list[list[Any]]:
        return [rest for name, *rest in self.messages if name == kind]


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


def process(
    chapter: str, url: str, home: Path, failpoint: str, earlier: Earlier, late_s: int
) -> ProcessMessages:
    """Run a chapter in a forked process, and return what it sent."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        _child(chapter, url, home, failpoint, earlier, late_s, writes)
    os.close(writes)
    with os.fdopen(reads) as lines:
        words = [json.loads(line) for line in lines]
    _, status = os.waitpid(pid, 0)
    return ProcessMessages(os.waitstatus_to_exitcode(status), words)


def _child(
    chapter: str, url: str, home: Path, failpoint: str, earlier: Earlier, late_s: int, writes: int
) -> None:
    def send(*message: Any) -> None:
        os.write(writes, (json.dumps(message) + "\n").encode())

    status = 1
    signal.alarm(LIMIT_S)
    try:
        with _commits_sent(send):
            life = Life(url, home, failpoint, earlier, send, late_s)
            CHAPTERS[chapter](life)
            life.tell_all()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def calm(databases: Databases, chapter: str) -> tuple[Counter[str], list[str]]:
    """Run a chapter in this process, so that forked processes inherit what is built at first use.

    Returns:
        How often it passes each commit, and what is wrong afterwards.
    """
    words: list[list[Any]] = []

    def send(*message: Any) -> None:
        words.append(json.loads(json.dumps(message)))

    with databases.fresh(empty=chapter in EMPTY) as (url, home), _commits_sent(send):
        life = Life(url, home, "", Earlier(), send, 0)
        CHAPTERS[chapter](life)
        life.tell_all()
        life.service.database.dispose()
        wrong = outside.check(url, words).wrong
    return Counter(name for kind, name, *_ in words if kind == "passed"), wrong


@contextmanager
def _commits_sent(send: Tell) -> Iterator[None]:
    """Report each commit that is passed."""
    write = Database.write

    def passing(database: Database, name: str = "") -> Any:
        send("passed", name)
        return write(database, name)

    with surroundings(send), patch.object(Database, "write", passing):
        yield


def story(databases: Databases, chapter: str, failpoint: str) -> dict[str, Any]:
    """Run a chapter. The first process ends at the failpoint, and a second one completes the chapter."""
    with databases.fresh(empty=chapter in EMPTY) as (url, home):
        first = process(chapter, url, home, failpoint, Earlier(), 0)
        earlier = Earlier(
            {step: name for step, name in first.of("ack")}, [name for (name,) in first.of("submitted")]
        )
        second = process(chapter, url, home, "", earlier, LATER_S)
        seen = outside.check(url, [*first.messages, *second.messages])
    statuses = [first.status, second.status]
    is_right = statuses == [STATUS, 0] and not seen.wrong
    return {
        "figures": Counter(crashes=statuses.count(STATUS), **seen.counts),
        "wrong": [] if is_right else [f"{chapter} {failpoint}: {statuses}: {seen.wrong}"],
    }


def points(passed: dict[str, Counter[str]], share: int | None) -> Iterator[tuple[str, str]]:
    """Yield chapter and failpoint for each name, in the first chapter that passes it.

    Args:
        passed: How often each chapter passes each commit.
        share: If it is None, both sides of each commit. If it is 0 or 1, one side, which alternates from commit to
            commit: the two shares together are all failpoints.
    """
    places = []
    for name in FAILPOINTS:
        chapter = next((chapter for chapter in CHAPTERS if passed[chapter][name]), None)
        if chapter is None:
            continue
        last = passed[chapter][name]
        numbers = {1}
        if name == "driver.turn":
            numbers = {1 + (last - 1) * part // (TURNS - 1) for part in range(TURNS)}
        places += [(chapter, name, number) for number in sorted(numbers)]
    for position, (chapter, name, number) in enumerate(places):
        for parity, side in enumerate(SIDES):
            if share is None or (position + parity) % 2 == share:
                yield chapter, f"{name}:{side}:{number}"


def crashes(
    databases: Databases, passed: dict[str, Counter[str]], names: Sequence[str], share: int | None
) -> dict[str, Any]:
    """End a process at each of these commits, and return what was counted and what was wrong."""
    began = time.monotonic()
    plots = [plot for plot in points(passed, share) if plot[1].partition(":")[0] in names]
    with multiprocessing.get_context("fork").Pool(CORES) as pool:
        outcomes = pool.starmap(story, [(databases, *plot) for plot in plots], chunksize=1)
    reached = {failpoint.partition(":")[0] for _, failpoint in plots}
    figures = sum((outcome["figures"] for outcome in outcomes), Counter[str]())
    return {
        "failpoints": len(reached),
        "not_passed": sorted(set(names) - reached),
        **{name: figures[name] for name in ("crashes", *outside.FIGURES)},
        "seconds": round(time.monotonic() - began, 1),
        "wrong": [what for outcome in outcomes for what in outcome["wrong"]],
    }


def main(folder: str) -> None:
    fakes.shared_app()
    sqlite = Databases("sqlite", Path(folder))
    # Chapters pass the same commits on each database, so they are counted on the one that costs least.
    passed, wrong = {}, list[str]()
    for chapter in CHAPTERS:
        passed[chapter], faults = calm(sqlite, chapter)
        wrong += [f"{chapter}: {what}" for what in faults]
    gc.disable()  # Each process lives for about a second.
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        url = asked["url"]
        databases = sqlite if url == "sqlite" else Databases(url, Path(folder))
        figures = crashes(databases, passed, asked.get("names") or list(FAILPOINTS), asked.get("share"))
        figures["wrong"] += wrong
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
