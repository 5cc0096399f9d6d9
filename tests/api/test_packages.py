"""Packages over REST, with both clients and on the command line, with real archives and a real prober."""

import json
import subprocess
import sys
import tempfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import fakes
from tests.client.both import Application, both
from tests.fakes import FakeService
from tests.packages.making import archive, folder, plain
from tuner.api import strict_json
from tuner.cli.main import app
from tuner.client import ApiError, Client
from tuner.client.packing import packed
from tuner.service.trainables import SubprocessProber
from tuner.store import jobs
from tuner.worker.environment import code_of

FILES = {"mine/__init__.py": "", "mine/train.py": "def train(config):\n    return {'acc': 1.0}\n"}
ENTRY = "mine.train:train"
ZIP = {"Content-Type": "application/zip"}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.fixture
def on(service: FakeService) -> TestClient:
    """Return a client of a service with packages enabled, of at most 1 MiB each."""
    return fakes.client_of(replace(service, settings=replace(service.settings, packages=True, package_mib=1)))


def push(on: TestClient, data: bytes | None = None, **query: str) -> dict[str, Any]:
    answer = on.post("/v1/packages", content=data or plain(FILES), headers=ZIP, params=query)
    assert answer.status_code in (200, 201), answer.text
    return dict(answer.json())


def refused(answer: Any, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert all(word in answer.text for word in words), answer.text


def test_packages_are_refused_unless_enabled(client: TestClient, service: FakeService) -> None:
    package = f"pkg_{'a' * 64}"
    for answer in (
        client.post("/v1/packages", content=b"PK\x03\x04" + b"{" * (2 << 20), headers=ZIP),
        client.get("/v1/packages"),
        client.get(f"/v1/packages/{package}"),
    ):
        refused(answer, 409, "TUNER_PACKAGES=on")
    job = client.post("/v1/jobs", json=fakes.body(package=package))
    refused(job, 422, "/package", "TUNER_PACKAGES=on")
    assert not (service.settings.home / "storage").exists()


def test_same_bytes_give_the_same_package(on: TestClient, service: FakeService) -> None:
    first = on.post("/v1/packages", content=plain(FILES), headers=ZIP, params={"name": "digits"})
    assert first.status_code == 201
    package = first.json()
    assert first.headers["location"] == f"/v1/packages/{package['id']}"
    assert (package["name"], package["files"], package["bytes"]) == ("digits", 2, len(plain(FILES)))
    again = on.post("/v1/packages", content=plain(FILES), headers=ZIP, params={"name": "another"})
    assert (again.status_code, again.json()) == (200, package)
    other = push(on, plain({"a.py": ""}))
    assert other["name"] == "a"
    service.now.pass_s(1)
    assert on.get(f"/v1/packages/{package['id']}").json() == package
    page = on.get("/v1/packages", params={"limit": 1}).json()
    rest = on.get("/v1/packages", params={"limit": 1, "cursor": page["next_cursor"]}).json()
    assert {listed_package["id"] for listed_package in page["items"] + rest["items"]} == {
        package["id"],
        other["id"],
    }
    assert rest["next_cursor"] is None
    digest = package["id"].removeprefix("pkg_")
    assert (service.settings.home / f"storage/default/packages/{digest}.zip").read_bytes() == plain(FILES)


def test_invalid_package_is_refused_and_not_stored(on: TestClient, service: FakeService) -> None:
    refused(on.post("/v1/packages", content=b"no zip", headers=ZIP), 422, "this is not a package")
    refused(on.post("/v1/packages", headers=ZIP), 422, "this is not a package")
    refused(on.post("/v1/packages", content=plain({"../x.py": ""}), headers=ZIP), 422, "not a path within")
    refused(
        on.post("/v1/packages", content=plain({"os.py": ""}), headers=ZIP), 422, "Python's standard library"
    )
    bomb = archive(("mine.py", b""), ("zeros", b"\0" * (11 << 20)))
    refused(on.post("/v1/packages", content=bomb, headers=ZIP), 422, "exceeds the size limit")
    large = on.post("/v1/packages", content=b"\0" * ((1 << 20) + 1), headers=ZIP)
    refused(large, 413, "at most 1048576 bytes")
    named = on.post("/v1/packages", content=plain(FILES), headers=ZIP, params={"name": "../x"})
    refused(named, 422, "letters, digits")
    refused(on.get("/v1/packages/pkg_1"), 404, "tuner packages push")
    refused(on.post("/v1/packages", content=plain(FILES), headers={**ZIP, "Authorization": "Bearer x"}), 401)
    assert on.get("/v1/packages").json()["items"] == []
    assert not (service.settings.home / "storage").exists()


def test_uploaded_package_is_not_read_as_json(on: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "repeated", lambda text: pytest.fail("the body was read as JSON"))
    assert push(on)["id"].startswith("pkg_")
    names = json.dumps({f"name_{n}": 1 for n in range(20_000)}).encode()
    refused(on.post("/v1/packages", content=names, headers=ZIP), 422, "package", "zip")


def test_trainable_of_a_job_must_be_in_its_package(on: TestClient, service: FakeService) -> None:
    package = push(on)["id"]
    job = fakes.submit(on, package=package, trainable=ENTRY)
    shown = on.get(f"/v1/jobs/{job}").json()
    assert (shown["package"], shown["trainable"]) == (package, ENTRY)
    assert on.get(f"/v1/jobs/{fakes.submit(on)}").json()["package"] is None
    missing = on.post("/v1/jobs", json=fakes.body(package=package, trainable="mine.trian:train"))
    refused(missing, 422, "/trainable", "no module mine.trian; the nearest: mine.train")
    unknown = on.post("/v1/jobs", json=fakes.body(package=f"{package[:-1]}x", trainable=ENTRY))
    refused(unknown, 422, "/package", "64 hexadecimal digits")
    unknown = on.post("/v1/jobs", json=fakes.body(package=f"pkg_{'0' * 64}", trainable=ENTRY))
    refused(unknown, 422, "/package", f"for example: {package} (mine)")
    assert on.post("/v1/plans", json=fakes.body(package=package, trainable=ENTRY)).status_code == 200
    assert service.prober.described.count(ENTRY) == 2


def test_modified_package_is_refused_until_uploaded_again(on: TestClient, service: FakeService) -> None:
    package = push(on)["id"]
    file = service.settings.home / f"storage/default/packages/{package.removeprefix('pkg_')}.zip"
    file.write_bytes(plain({"mine/train.py": "def train(config): ...\n"}))
    body = fakes.body(package=package, trainable=ENTRY)
    refused(on.post("/v1/jobs", json=body), 422, "/package", "was changed in the storage")
    file.unlink()
    refused(on.post("/v1/jobs", json=body), 422, "/package", "upload it again")
    assert push(on)["id"] == package
    assert on.post("/v1/jobs", json=body).status_code == 201


def test_code_digest_depends_on_the_package(on: TestClient, service: FakeService) -> None:
    """A pilot is therefore valid for one package only."""
    first, second = (push(on, plain({**FILES, "x.py": f"X = {n}\n"}))["id"] for n in range(2))
    asked = {"trainable": ENTRY, "planning": {"pilot": {"usd": 0.0005}}}
    pilots = [
        on.post("/v1/pilots", json=fakes.body(package=package, **asked)) for package in (first, first, second)
    ]
    assert [response.status_code for response in pilots] == [201, 200, 201], [
        response.text for response in pilots
    ]
    assert pilots[0].json()["id"] == pilots[1].json()["id"] != pilots[2].json()["id"]
    with service.database.read() as db:
        specs = [jobs.get(db, pilot.json()["id"]).spec for pilot in pilots]
    assert [spec.package for spec in specs] == [first, first, second]
    assert len({code_of(spec, []) for spec in specs}) == 2


def test_warm_start_needs_the_same_package_or_one_of_the_same_name(on: TestClient) -> None:
    old, new = (push(on, plain({**FILES, "x.py": f"X = {n}\n"}), name="digits")["id"] for n in range(2))
    other = push(on, plain({**FILES, "x.py": "X = 2\n"}), name="letters")["id"]
    job = fakes.submit(on, package=old, trainable=ENTRY)
    warm = {"trainable": ENTRY, "warm_start": {"jobs": [job]}}
    fakes.submit(on, package=old, **warm)
    fakes.submit(on, package=new, **warm)
    answer = on.post("/v1/jobs", json=fakes.body(package=other, **warm))
    refused(answer, 422, "/warm_start/jobs/0", "of another package")


# The clients and the command line


@pytest.mark.parametrize("is_awaited", [False, True])
def test_clients_upload_a_folder_and_list_packages(on: TestClient, tmp_path: Path, is_awaited: bool) -> None:
    transport = Application(on._transport) if is_awaited else on._transport
    client = both("http://tuner", fakes.KEY, transport=transport, is_awaited=is_awaited)
    package = client.upload(folder(tmp_path / "my digits", FILES))
    assert (package.name, package.files) == ("my digits", 2)
    assert [listed_package.id for listed_package in client.packages()] == [package.id]
    assert client.package(package.id) == package
    with pytest.raises(ApiError) as error:
        client.upload(tmp_path / "nowhere")
    assert error.value.status == 422
    with pytest.raises(ApiError) as error:
        client.package("../jobs")
    assert error.value.status == 404


def test_packages_command_prints_the_rest_answer(
    on: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tuner.client.Client", lambda: Client("http://tuner", fakes.KEY, transport=on._transport)
    )

    def tuner(*words: str) -> Any:
        result = CliRunner().invoke(app, ["packages", *words])
        assert result.exit_code == 0, result.output
        return result.stdout

    pushed = json.loads(tuner("push", str(folder(tmp_path / "digits", FILES)), "--json"))
    assert tuner("push", str(tmp_path / "digits")).strip() == pushed["id"]
    assert pushed == on.get(f"/v1/packages/{pushed['id']}").json()
    assert json.loads(tuner("show", pushed["id"], "--json")) == pushed
    assert json.loads(tuner("list", "--json")) == on.get("/v1/packages").json()
    assert "digits" in tuner("list")


def test_same_files_are_packed_to_the_same_bytes(tmp_path: Path) -> None:
    module = {"__init__.py": "", "train.py": "def train(config): ...\n", "data/a.json": "{}"}
    source, other = folder(tmp_path / "a/mine", module), tmp_path / "b/mine"
    for name in reversed(module):
        folder(other, {name: module[name]})
    folder(other, {"__pycache__/train.cpython-311.pyc": "x", ".git/config": "x", "env/pyvenv.cfg": "x"})
    (other / "train.py").chmod(0o755)
    assert packed(source) == packed(other)
    assert packed(source)[1] == packed(source)[1]
    (other / "link.py").symlink_to("train.py")
    with pytest.raises(ValueError, match="is a link"):
        packed(other)
    alone = packed(source / "train.py")
    assert alone[0] == "train"
    file = tmp_path / "w-1.0-py3-none-any.whl"
    file.write_bytes(alone[1])
    assert packed(file) == ("w-1.0-py3-none-any", alone[1])
    with pytest.raises(ValueError, match=r"no \.py file"):
        packed(folder(tmp_path / "empty", {"a.txt": ""}))


class Marked:
    """A value that leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.fixture
def real(service: FakeService) -> TestClient:
    """Return a client of a service with packages enabled, which imports trainables in real processes."""
    changed = replace(service.settings, packages=True)
    return fakes.client_of(replace(service, settings=changed, prober=SubprocessProber()))


@pytest.fixture
def own(real: TestClient) -> Client:
    return Client("http://tuner", fakes.KEY, transport=real._transport)


def test_function_is_sent_by_value_and_unpickled_only_where_it_is_called(
    own: Client, service: FakeService, tmp_path: Path
) -> None:
    marked, factor = Marked(tmp_path / "mark"), np.float64(3)

    def train(config: dict[str, float]) -> dict[str, float]:
        return {"acc": float(factor * config["x"]), "marked": marked is None}

    space = fakes.body()["search_space"]
    objective = {"metric": "acc", "mode": "max"}
    job = own.submit(train, space=space, budget=0.001, objective=objective)
    assert (job.name, job.trainable, job.budget["usd"]) == ("train", "pickled_train:train", 0.001)
    assert own.package(str(job.package)).name == "train"
    named = own.submit(train, name="mine", search_space=space, budget={"usd": 1}, objective=objective)
    assert (named.name, named.package) == ("mine", job.package)
    fakes.simulate(service, job.id)
    assert own.replay(job).difference is None
    assert not (tmp_path / "mark").exists()
    (stored,) = (service.settings.home / "storage").rglob("*.zip")
    program = f"import sys; sys.path.insert(0, {str(stored)!r}); import pickled_train; print('numpy' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"True\n"
    )
    assert not (tmp_path / "mark").exists()
    with zipfile.ZipFile(stored) as archive:
        archive.extractall(tmp_path / "files")
        assert "#         return {" in archive.read("pickled_train.py").decode()
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'files')!r}); import pickled_train; print(pickled_train.train({{'x': 2}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"{'acc': 6.0, 'marked': True}\n"
    assert (tmp_path / "mark").exists()


def test_function_that_cannot_be_sent_is_refused(own: Client, client: TestClient) -> None:
    lock = threading.Lock()

    def train(config: dict[str, float]) -> None:
        lock.acquire()

    for function, says in (
        (train, "train uses an object that cannot be pickled"),
        (lambda config: None, "not a function with a name"),
        (Marked, "not a function with a name"),
    ):
        with pytest.raises(ApiError, match=says):
            own.submit(function, space={}, budget=1)
    with pytest.raises(TypeError, match="into the job's dictionary"):
        own.submit({"name": "digits"}, budget=1)
    off = Client("http://tuner", fakes.KEY, transport=client._transport)
    with pytest.raises(ApiError, match="TUNER_PACKAGES=on") as refusal:
        off.submit(push, space={}, budget=1)
    assert refusal.value.status == 409


OBJECTIVES = """
def objective(trial):
    rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
    if trial.suggest_categorical("kind", ["sgd", "adam"]) == "sgd":
        trial.suggest_float("momentum", 0.0, 0.9)
    trial.report(rate, 0)

def failing(trial):
    raise KeyError("data")
"""
RATE = {"type": "float", "low": 1e-4, "high": 1.0, "log": True}


def test_search_space_of_an_objective_is_recorded(own: Client, real: TestClient, client: TestClient) -> None:
    package = push(real, plain({"mine.py": OBJECTIVES}))["id"]
    recorded = own.trainable("mine:objective", kind="optuna", package=package)
    assert (recorded.error, recorded.code) == (None, None)
    momentum = {"type": "float", "low": 0.0, "high": 0.9, "when": {"kind": ["sgd"]}}
    assert recorded.search_space is not None
    assert recorded.search_space["rate"] == RATE
    assert recorded.search_space["momentum"] == momentum
    failed = own.trainable("mine:failing", kind="optuna", package=package)
    assert (failed.search_space, failed.code) == (None, "objective_raised")
    assert "KeyError" in str(failed.error)
    assert "no module theirs" in str(own.trainable("theirs:objective", package=package).error)
    path = "/v1/trainables/mine:objective"
    refused(real.get(path, params={"package": f"pkg_{'a' * 64}"}), 404, "does not exist")
    refused(real.get("/v1/trainables/mine", params={"package": package}), 422, "/trainable")
    refused(real.get(path, params={"kind": "optuna"}), 422, "TUNER_ALLOWED_MODULES")
    for query in ({"kind": "optuna"}, {"package": package}):
        refused(client.get(path, params=query), 409, "TUNER_PACKAGES=on")


def test_objective_is_submitted_without_a_space(own: Client) -> None:
    def objective(trial: Any) -> float:
        return float(trial.suggest_float("rate", 1e-4, 1.0, log=True))

    def raising(trial: Any) -> float:
        raise KeyError("data")

    asked: dict[str, Any] = {
        "kind": "optuna",
        "budget": 0.01,
        "objective": {"metric": "value", "mode": "min"},
    }
    job = own.submit(objective, **asked)
    assert (job.kind, job.search_space) == ("optuna", {"rate": RATE})
    with pytest.raises(ApiError, match="objective_raised"):
        own.submit(raising, **asked)
