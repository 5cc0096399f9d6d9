"""The file format of a backup, and the cases in which `tuner restore` refuses before it changes anything."""

import json
import struct
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url
from starlette.testclient import TestClient

from tests import books, fakes
from tests.fakes import FakeService
from tests.service.restoring import back_up, put_back
from tests.strategies import examples
from tests.upgrades import made_up
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.database.database import Database, newest_revision
from tuner.database.sqlite import sqlite3
from tuner.domain.errors import BadFile, Conflict, Fenced, TunerError, Unavailable
from tuner.domain.time import Instant
from tuner.ledger import ledger
from tuner.service.leading import Leading
from tuner.store import copies
from tuner.store.backup_file import digest, pack, unpack
from tuner.store.journal import SqlJournal


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """Return a backup file and the content of the database copy in it."""
    folder = tmp_path_factory.mktemp("made")
    service = fakes.service_in(folder / "home")
    back_up(service, folder / "b")
    service.database.dispose()
    unpack(folder / "b", folder / "copy")
    return folder / "b", (folder / "copy").read_bytes()


@examples(150)
@given(data=st.data())
def test_altered_or_truncated_backup_is_refused_or_restores_the_same_bytes(
    made: tuple[Path, bytes], data: st.DataObject
) -> None:
    file, copy = made
    content = bytearray(file.read_bytes())
    at = data.draw(
        st.one_of(st.integers(0, len(content) - 1), st.integers(len(content) - 300, len(content) - 1))
    )
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    altered, into = file.with_name("altered"), file.with_name("into")
    altered.write_bytes(content)
    into.unlink(missing_ok=True)
    try:
        unpack(altered, into)
    except BadFile:
        return
    assert into.read_bytes() == copy


@pytest.mark.parametrize(("flags", "method"), [(1, 8), (0, 97)], ids=["encrypted", "packed as nobody can"])
def test_encrypted_or_unknown_compression_is_refused(
    made: tuple[Path, bytes], tmp_path: Path, flags: int, method: int
) -> None:
    """Flags and method are at byte 6 of an entry's local header, and at byte 8 of its header in the central directory."""
    content = bytearray(made[0].read_bytes())
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        where = content.index(signature) + at
        content[where : where + 4] = struct.pack("<HH", flags, method)
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(BadFile, match="is not a backup"):
        unpack(tmp_path / "b", tmp_path / "copy")


def test_backup_file_is_complete_private_and_never_overwritten(service: FakeService, tmp_path: Path) -> None:
    file = tmp_path / "b"
    backup = back_up(service, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert backup.revision == newest_revision()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    with pytest.raises(Conflict, match="never overwritten"):
        back_up(service, file)
    with zipfile.ZipFile(file) as packed:
        assert {"tuner", "revision", "taken_at", "sha256"} <= json.loads(packed.read("backup.json")).keys()


def test_file_and_job_that_appear_during_a_backup_are_left_out(
    service: FakeService, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, copy_database = tmp_path / "b", copies.copy_database

    def copy_slowly(database: Database, to: Path) -> None:
        copy_database(database, to)
        fakes.submit(client)

    monkeypatch.setattr(copies, "copy_database", copy_slowly)
    assert back_up(service, file).jobs == 0
    file.unlink()

    def copy_more_slowly(database: Database, to: Path) -> None:
        copy_database(database, to)
        file.write_text("another backup")

    monkeypatch.setattr(copies, "copy_database", copy_more_slowly)
    with pytest.raises(Conflict, match="never overwritten"):
        back_up(service, file)
    assert file.read_text() == "another backup"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_failed_backup_leaves_no_file(service: FakeService, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="nothing can be written to"):
        back_up(service, tmp_path / "nowhere/b")
    Path(str(service.database.url.database)).write_bytes(b"nonsense" * 4096)
    with pytest.raises(TunerError):
        back_up(service, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_backup_that_cannot_be_renamed_leaves_no_file(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packed file is gone before it is renamed, as after an error of the disk."""
    touch = Path.touch

    def remove_packed(file: Path, *, exist_ok: bool) -> None:
        touch(file, exist_ok=exist_ok)
        (packed,) = tmp_path.glob(".b.*/packed")
        packed.unlink()

    monkeypatch.setattr(Path, "touch", remove_packed)
    with pytest.raises(BadFile, match="cannot be written"):
        back_up(service, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_backups_taken_under_load_are_consistent(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    job, over = fakes.submit(client, budget={"usd": 0.001}), Event()

    def restored() -> None:
        number = 0
        while number == 0 or not over.is_set():
            back_up(service, tmp_path / str(number))
            number += 1

    load = Thread(target=restored)
    load.start()
    fakes.simulate(service, job)
    over.set()
    load.join()
    files = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    posted = []
    for file in {files[0], files[len(files) // 2], files[-1]}:
        copy = tmp_path / f"{file.name}.db"
        unpack(file, copy)
        database = Database(f"sqlite:///{copy}")
        with database.read() as db:
            assert books.faults(db) == []
            posted.append(ledger.account(db, job).posted.usd.micro_usd)
        database.dispose()
    assert posted


def test_restore_over_existing_jobs_requires_replace(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    back_up(service, tmp_path / "b")
    assert put_back(service, tmp_path / "b", replace=False).jobs == 0
    job = fakes.submit(client)
    before = answers_of_waiting(client, job)
    with pytest.raises(Conflict, match="--replace"):
        put_back(service, tmp_path / "b", replace=False)
    assert answers_of_waiting(client, job) == before
    assert put_back(service, tmp_path / "b").gone == (job,)


def answers_of_waiting(client: TestClient, job: str) -> bytes:
    return client.get(f"/v1/jobs/{job}").content


def altered(service: FakeService, tmp_path: Path, **changes: object) -> Path:
    """Return a complete backup with a changed description."""
    back_up(service, tmp_path / "b")
    about = unpack(tmp_path / "b", tmp_path / "copy")
    pack(tmp_path / "copy", replace(about, **changes), tmp_path / "other")  # type: ignore[arg-type]
    return tmp_path / "other"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"revision": "9999"}, "restore the backup with that version or a newer one"),
        ({"kind": "postgresql"}, "give a backup of the same kind"),
        ({"format": 2}, "restore it with a newer version"),
        ({"size_bytes": 1}, "was altered"),
    ],
)
def test_backup_of_wrong_revision_kind_format_or_size_is_refused(
    service: FakeService, client: TestClient, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    job = fakes.submit(client)
    file = altered(service, tmp_path, **changes)
    with pytest.raises((Conflict, BadFile), match=message):
        put_back(service, file)
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "queued"


def test_restore_is_refused_while_a_service_leads_and_fences_old_terms(
    service: FakeService, tmp_path: Path
) -> None:
    """A leader that was suspended during the restore cannot write afterwards, in any of its terms."""
    back_up(service, tmp_path / "b")
    leading = Leading(service.database, service.now)
    term = leading.term()
    assert term is not None
    with pytest.raises(Conflict, match="stop it and all other services, and wait for ten seconds"):
        put_back(service, tmp_path / "b")
    service.now.pass_s(4)
    put_back(service, tmp_path / "b")
    assert Leading(service.database, service.now).term() is not None
    with pytest.raises(Fenced), leading.write(term):
        pass


def test_text_file_or_missing_file_is_refused_as_backup(service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no backup")
    for name in ("text", "nowhere"):
        with pytest.raises(BadFile):
            put_back(service, tmp_path / name)


def test_backup_of_older_revision_is_migrated_on_restore(service: FakeService, tmp_path: Path) -> None:
    back_up(service, tmp_path / "b")
    revision = newest_revision()
    with made_up.known(tmp_path / "newer"):
        restored = put_back(service, tmp_path / "b")
        assert (restored.revision_before, restored.revision) == (revision, made_up.REVISION)
        assert service.database.revision() == made_up.REVISION


def test_restore_names_checkpoints_missing_from_storage(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    job = fakes.submit(client)
    fakes.simulate(service, job, messages=40)
    back_up(service, tmp_path / "b")
    restored = put_back(service, tmp_path / "b")
    assert restored.missing
    assert all(checkpoint.startswith(f"{job} trial_") for checkpoint in restored.missing)
    assert restored.storage_fault is None
    assert restored.empty_storage == service.settings.storage


def test_trial_with_a_later_checkpoint_in_storage_forgets_the_missing_step(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    """A trial without any checkpoint in the storage does not start from scratch, because it may be the wrong storage."""
    job = fakes.submit(client)
    fakes.simulate(service, job, messages=40)
    back_up(service, tmp_path / "b")
    saved = saved_steps(service, job)
    went_on, nowhere = sorted(saved)[:2]
    (tmp_path / "staged").mkdir()
    (tmp_path / "staged/state.pt").write_text("later")
    store = CheckpointStore(service.settings.storage, service.project, job)
    store.publish(went_on, 1, saved[went_on] + 1, tmp_path / "staged")
    restored = put_back(service, tmp_path / "b")
    assert f"{job} {went_on} step {saved[went_on]}" in restored.missing
    assert restored.empty_storage is None
    now = saved_steps(service, job)
    assert went_on not in now
    assert now[nowhere] == saved[nowhere]


def saved_steps(service: FakeService, job: str) -> dict[str, int]:
    return SqlJournal(service.database, job, service.project, 1, service.now()).newest_checkpoints()


def test_missing_postgresql_client_programs_are_named(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    url = make_url("postgresql://u:secret@h/db")
    for call in (
        lambda: copies.dump(url, "public", tmp_path / "x"),
        lambda: copies.load(url, "public", tmp_path / "x", finally_sql=""),
    ):
        with pytest.raises(Unavailable, match="postgresql-client") as refused:
            call()
        assert "secret" not in str(refused.value)


ALTERATIONS = {
    "a trigger": (
        "CREATE TRIGGER sneaks AFTER INSERT ON jobs BEGIN DELETE FROM accounts; END",
        "trigger 'sneaks'",
    ),
    "a view": ("CREATE VIEW sneaks AS SELECT * FROM jobs", "view 'sneaks'"),
    "an append-only table opened": (
        "DROP TRIGGER entries_no_update; CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries BEGIN SELECT 1; END",
        "trigger 'entries_no_update'",
    ),
    "a negative balance": (
        "PRAGMA ignore_check_constraints=ON; UPDATE accounts SET posted_usd = -1",
        "a negative amount",
    ),
}


@pytest.mark.parametrize("what", ALTERATIONS)
def test_resealed_backup_with_foreign_triggers_views_or_amounts_is_refused(
    service: FakeService, client: TestClient, tmp_path: Path, what: str
) -> None:
    fakes.submit(client)
    back_up(service, tmp_path / "b")
    about = unpack(tmp_path / "b", tmp_path / "copy")
    statement, words = ALTERATIONS[what]
    with closing(sqlite3.connect(tmp_path / "copy")) as db:
        db.executescript(statement)
    copy = tmp_path / "copy"
    pack(copy, replace(about, size_bytes=copy.stat().st_size, sha256=digest(copy)), tmp_path / "resealed")
    with pytest.raises(BadFile, match=words):
        put_back(service, tmp_path / "resealed")
    assert client.get("/v1/jobs").json()["items"], "nothing changed"


def test_backup_with_unknown_member_or_future_time_is_refused(service: FakeService, tmp_path: Path) -> None:
    back_up(service, tmp_path / "b")
    about = unpack(tmp_path / "b", tmp_path / "copy")
    pack(tmp_path / "copy", replace(about, taken_at=Instant(about.taken_at + 10**18)), tmp_path / "later")
    with pytest.raises(BadFile, match="is in the future"):
        put_back(service, tmp_path / "later")
    with zipfile.ZipFile(tmp_path / "b", "a") as file:
        file.writestr("../../etc/passwd", "x")
    with pytest.raises(BadFile, match=r"its member '\.\./\.\./etc/passwd'"):
        put_back(service, tmp_path / "b")
