"""Test the names of failpoints, how a failpoint is requested, and that a process ends only there."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.database import failpoints
from tuner.database.database import Database
from tuner.database.failpoints import FAILPOINTS, STATUS, Failpoint
from tuner.service.cluster import driver_env
from tuner.settings import Settings

ROOT = Path(__file__).parents[2]
FORWARDS = ("leadership.py", "leading.py")
# One interpreter forks a process per failpoint, because its imports take longer than the rest of the test.
PROGRAM = """
import os, sys
from tuner.database.database import Database
for url, failpoint in zip(sys.argv[1::2], sys.argv[2::2]):
    pid = os.fork()
    if pid == 0:
        database = Database(url, failpoint=failpoint)
        for number in range(3):
            with database.write("driver.turn") as db:
                db.exec_driver_sql(f"INSERT INTO it VALUES ({number})")
            os.write(1, b"committed ")
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    os.write(1, f"{os.waitstatus_to_exitcode(status)}\\n".encode())
"""
ENDS = {
    # The exit status, the number of rows that are kept, and the number of commits that the process reported.
    "": (0, 3, 3),
    "job.submit:after": (0, 3, 3),
    "driver.turn:before": (STATUS, 0, 0),
    "driver.turn:after": (STATUS, 1, 0),
    "driver.turn:before:3": (STATUS, 2, 2),
    "driver.turn:after:3": (STATUS, 3, 2),
    "driver.turn:after:4": (0, 3, 3),
}


def transactions() -> Iterator[tuple[str, str | None]]:
    """Yield the location and the name of each write transaction. The name is None if it is not a string
    literal.
    """
    for path in sorted((ROOT / "tuner").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if ".write(" in text else []:
            for item in node.items if isinstance(node, ast.With) else []:
                call = item.context_expr
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "write":
                    last = call.args[-1] if call.args else None
                    if isinstance(last, ast.Name) and last.id == "name" and path.name in FORWARDS:
                        continue
                    name = last.value if isinstance(last, ast.Constant) else None
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", name


def test_every_write_transaction_has_a_unique_failpoint_name() -> None:
    named_transactions = list(transactions())
    assert [where for where, name in named_transactions if name not in FAILPOINTS] == [], (
        "name it: tuner/database/failpoints.py"
    )
    assert sorted(name for _, name in named_transactions if name) == sorted(FAILPOINTS)


def test_docs_list_every_failpoint() -> None:
    text = (ROOT / "docs/failpoints.md").read_text()
    assert re.findall(r"^\| `([\w.]+)` \| (.*) \|$", text, re.MULTILINE) == list(FAILPOINTS.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("driver.trun:after", "the nearest: driver.turn"),
        ("after", "'after' is not a failpoint"),
        ("driver.turn", "NAME:before or NAME:after"),
        ("driver.turn:amid", "NAME:before or NAME:after"),
        ("driver.turn:after:", "the number of the occurrence"),
        ("driver.turn:after:0", "the number of the occurrence"),
        ("driver.turn:after:-1", "the number of the occurrence"),
        ("driver.turn:after:1:2", "as in driver.turn:after:3"),
    ],
)
def test_unknown_failpoint_is_refused_with_the_nearest_name(text: str, message: str, tmp_path: Path) -> None:
    settings = Settings.from_env({"TUNER_FAILPOINT": text, "TUNER_HOME": str(tmp_path)})
    with pytest.raises(ValueError, match="TUNER_FAILPOINT") as refused:
        Database(settings.database_url, failpoint=settings.failpoint)
    assert message in str(refused.value)


def test_driver_failpoints_are_passed_only_to_drivers() -> None:
    for text, is_passed in (
        ("driver.turn:after", True),
        ("self_test.hold:before", True),
        ("job.submit:after", False),
    ):
        env = driver_env(Settings.from_env({"TUNER_FAILPOINT": text}), {})
        assert env.get("TUNER_FAILPOINT") == (text if is_passed else None)


def test_process_ends_only_at_the_requested_failpoint(tmp_path: Path) -> None:
    databases = [Database(f"sqlite:///{tmp_path}/{number}.db") for number in range(len(ENDS))]
    for database in databases:
        with database.write() as db:
            db.exec_driver_sql("CREATE TABLE it (number INTEGER)")
    pairs = zip(map(str, (database.url for database in databases)), ENDS, strict=True)
    command = [sys.executable, "-c", PROGRAM, *(word for pair in pairs for word in pair)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    ends = {}
    for failpoint, database, line in zip(ENDS, databases, done.stdout.splitlines(), strict=True):
        *messages, status = line.split()
        with database.read() as db:
            (count,) = db.exec_driver_sql("SELECT count(*) FROM it").one()
        database.dispose()
        ends[failpoint] = (int(status), count, len(messages))
    assert ends == ENDS
    ended = [failpoint for failpoint, (status, *_) in ENDS.items() if status]
    assert done.stderr.count("ends here, at the failpoint driver.turn") == len(ended)


def test_rolled_back_transaction_reaches_no_failpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = []
    monkeypatch.setattr(Failpoint, "reached", lambda _, *where: passed.append(where))
    database = Database("sqlite://", failpoint="driver.turn:before")
    with pytest.raises(KeyError), database.write("driver.turn"):
        raise KeyError
    assert passed == []
    with database.write("driver.turn"):
        pass
    assert passed == [("driver.turn", side) for side in failpoints.SIDES]
