"""Test failpoints: their names, how one is requested, and that nothing else happens."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.service.cluster import driver_env
from tuner.settings import Settings
from tuner.store import failpoints
from tuner.store.database import Database
from tuner.store.failpoints import FAILPOINTS, STATUS, Failpoint

ROOT = Path(__file__).parents[2]
FORWARDS = ("leadership.py", "leading.py")
PROGRAM = """
import sys
from tuner.store.database import Database
database = Database(sys.argv[1], failpoint=sys.argv[2])
for number in range(3):
    with database.write("driver.turn") as db:
        db.exec_driver_sql(f"INSERT INTO it VALUES ({number})")
    print(number, flush=True)
"""


def transactions() -> Iterator[tuple[str, str | None]]:
    """Yield the location and the name of each write transaction. The name is None if it is not a string
    literal.
    """
    for path in sorted((ROOT / "tuner").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for item in node.items if isinstance(node, ast.With) else []:
                call = item.context_expr
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "write":
                    last = call.args[-1] if call.args else None
                    if isinstance(last, ast.Name) and last.id == "name" and path.name in FORWARDS:
                        continue
                    name = last.value if isinstance(last, ast.Constant) else None
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", name


def test_every_write_transaction_has_a_name_of_its_own() -> None:
    found = list(transactions())
    assert [where for where, name in found if name not in FAILPOINTS] == [], (
        "name it: tuner/store/failpoints.py"
    )
    assert sorted(name for _, name in found if name) == sorted(FAILPOINTS)


def test_the_table_in_the_docs_is_that_of_the_code() -> None:
    text = (ROOT / "docs/failpoints.md").read_text()
    assert re.findall(r"^\| `([\w.]+)` \| (.*) \|$", text, re.MULTILINE) == list(FAILPOINTS.items())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("driver.trun:after", "the nearest: driver.turn"),
        ("after", "there is no failpoint 'after'"),
        ("driver.turn", "NAME:before or NAME:after"),
        ("driver.turn:amid", "NAME:before or NAME:after"),
        ("driver.turn:after:", "the number of the passing"),
        ("driver.turn:after:0", "the number of the passing"),
        ("driver.turn:after:-1", "the number of the passing"),
        ("driver.turn:after:1:2", "such as driver.turn:after:3"),
    ],
)
def test_what_is_no_failpoint_is_refused_with_what_is_near(text: str, said: str, tmp_path: Path) -> None:
    settings = Settings.from_env({"TUNER_FAILPOINT": text, "TUNER_HOME": str(tmp_path)})
    with pytest.raises(ValueError, match="TUNER_FAILPOINT") as refused:
        Database(settings.database_url, failpoint=settings.failpoint)
    assert said in str(refused.value)


def test_only_a_driver_is_told_of_a_failpoint_of_drivers() -> None:
    for text, told in (("driver.turn:after", True), ("gate.hold:before", True), ("job.submit:after", False)):
        env = driver_env(Settings.from_env({"TUNER_FAILPOINT": text}), {})
        assert env.get("TUNER_FAILPOINT") == (text if told else None)


@pytest.mark.parametrize(
    ("failpoint", "status", "kept", "told"),
    [
        ("", 0, 3, 3),
        ("job.submit:after", 0, 3, 3),
        ("driver.turn:before", STATUS, 0, 0),
        ("driver.turn:after", STATUS, 1, 0),
        ("driver.turn:before:3", STATUS, 2, 2),
        ("driver.turn:after:3", STATUS, 3, 2),
        ("driver.turn:after:4", 0, 3, 3),
    ],
)
def test_a_process_ends_there_and_nowhere_else(
    tmp_path: Path, failpoint: str, status: int, kept: int, told: int
) -> None:
    url = f"sqlite:///{tmp_path}/it.db"
    database = Database(url)
    with database.write() as db:
        db.exec_driver_sql("CREATE TABLE it (number INTEGER)")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, failpoint], cwd=ROOT, capture_output=True, text=True
    )
    with database.read() as db:
        (count,) = db.exec_driver_sql("SELECT count(*) FROM it").one()
    database.dispose()
    assert (done.returncode, count, len(done.stdout.split())) == (status, kept, told)
    assert ("ends here, at the failpoint driver.turn" in done.stderr) == bool(status)


def test_a_transaction_that_is_undone_passes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = []
    monkeypatch.setattr(Failpoint, "reached", lambda _, *where: passed.append(where))
    database = Database("sqlite://", failpoint="driver.turn:before")
    with pytest.raises(KeyError), database.write("driver.turn"):
        raise KeyError
    assert passed == []
    with database.write("driver.turn"):
        pass
    assert passed == [("driver.turn", side) for side in failpoints.SIDES]
