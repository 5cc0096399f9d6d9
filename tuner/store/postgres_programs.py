"""Run PostgreSQL's programs to copy and restore a database: pg_dump, pg_restore and psql.

The connection settings, with the password, are passed in a service file that only this user can read. On the command line
every user of the machine could read them.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL

from tuner.domain.errors import Unavailable

INSTALL = "install PostgreSQL's client programs, of the server's version or newer, such as by `apt-get install postgresql-client`"
_EMPTY = """
SET client_min_messages = warning;
DO $$
DECLARE found record;
BEGIN
  FOR found IN SELECT format('%I.%I', n.nspname, c.relname) AS name, c.relkind AS kind
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'p', 'v', 'm')
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
    ORDER BY c.relkind DESC LOOP
    EXECUTE format('DROP %s IF EXISTS %s CASCADE',
      CASE found.kind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END, found.name);
  END LOOP;
  FOR found IN SELECT p.oid::regprocedure AS name
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = '{schema}' AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e') LOOP
    EXECUTE format('DROP ROUTINE %s CASCADE', found.name);
  END LOOP;
  FOR found IN SELECT format('%I.%I', n.nspname, t.typname) AS name
    FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE n.nspname = '{schema}' AND t.typtype = 'e'
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = t.oid AND d.deptype = 'e') LOOP
    EXECUTE format('DROP TYPE %s CASCADE', found.name);
  END LOOP;
END $$;
"""


def dump(url: URL, schema: str, to: Path) -> None:
    """Write one consistent state of the schema to `to`, in pg_dump's custom format.

    Raises:
        Unavailable: A program is missing or fails. The text says what to do.
    """
    words = ["--format=custom", "--no-owner", "--no-privileges", f'--schema="{schema}"', f"--file={to}"]
    with _service(url) as env:
        _run("pg_dump", [*words, "--dbname=service=tuner"], env)


def load(url: URL, schema: str, dumped: Path, *, finally_sql: str) -> None:
    """Replace everything in the schema by the dump, and then run `finally_sql`, in one transaction.

    Raises:
        Unavailable: A program is missing or fails, and nothing has changed. The text says what to do.
    """
    _needs("psql")
    with _service(url) as env, tempfile.TemporaryDirectory(prefix="tuner-restore-") as name:
        before, script, after = (Path(name) / part for part in ("before.sql", "dumped.sql", "after.sql"))
        before.write_text(_EMPTY.replace("{schema}", schema.replace("'", "''")))
        after.write_text(finally_sql)
        # With --schema, pg_restore does not create the schema itself, which already exists.
        words = ["--no-owner", "--no-privileges", f"--schema={schema}", f"--file={script}", str(dumped)]
        _run("pg_restore", words, env)
        _without_newer_settings(script)
        files = [f"--file={one}" for one in (before, script, after)]
        words = ["--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", *files]
        _run("psql", [*words, "--output=/dev/null", "--dbname=service=tuner"], env)


def _without_newer_settings(script: Path) -> None:
    """Comment out a setting that pg_restore 17 and newer writes and servers before 17 do not know."""
    with script.open("r+b") as file:
        head = file.read(4096)
        file.seek(0)
        file.write(head.replace(b"\nSET transaction_timeout", b"\n--- transaction_timeout"))


@contextmanager
def _service(url: URL) -> Iterator[dict[str, str]]:
    """Write a service file, and yield an environment in which `service=tuner` connects to the database."""
    found = {
        "host": url.host,
        "port": url.port,
        "user": url.username,
        "password": url.password,
        "dbname": url.database,
        **{key: value for key, value in url.query.items() if isinstance(value, str)},
    }
    lines = ["[tuner]", *(f"{key}={value}" for key, value in found.items() if value is not None)]
    handle, name = tempfile.mkstemp(prefix="tuner-pg-")  # mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write("\n".join(lines) + "\n")
        yield {**os.environ, "PGSERVICEFILE": name}
    finally:
        Path(name).unlink()


def _needs(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise Unavailable(f"this needs {program}, which is not on the PATH: {INSTALL}")
    return found


def _run(program: str, words: Sequence[str], env: dict[str, str]) -> None:
    done = subprocess.run(
        [_needs(program), *words], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode == 0:
        return
    said = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
    fix = (
        f": {INSTALL}"
        if "server version mismatch" in done.stderr or "unsupported version" in done.stderr
        else ""
    )
    raise Unavailable(f"{program}: {'; '.join(said[:3])[:600]}{fix}")
