"""Real child processes import from packages: each from its own, and never from one that differs from the upload."""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.packages.making import plain
from tests.worker.driving import Driver
from tuner.domain.command import PROGRAM_ENTRY
from tuner.domain.job import program_config
from tuner.service.trainables import SubprocessProber
from tuner.worker.packages import Stored, id_of
from tuner.worker.supervisor import Supervisor

ENTRY = "mine.train:train"
# Returns where it was imported from, and what its subprocesses would import.
CODE = """
import json, os, subprocess, sys
from pathlib import Path
from mine.helper import VALUE

def train(config):
    '''Of the package.'''
    program = "import mine.helper; print(mine.helper.VALUE)"
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    seen = {"value": VALUE, "file": __file__, "other": completed.stdout.strip(), "first": sys.path[0]}
    return {"acc": VALUE, "seen": json.dumps(seen)}
"""


def uploaded(tmp_path: Path, value: int, code: str = CODE) -> Stored:
    data = plain({"mine/__init__.py": "", "mine/train.py": code, "mine/helper.py": f"VALUE = {value}\n"})
    package = Stored(str(tmp_path / "storage"), "default", id_of(data))
    package.put(data)
    return package


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary directory of its own, and a module of the same name on the import path."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "here/mine").mkdir(parents=True)
    (tmp_path / "here/mine/train.py").write_text("def train(config): return {'acc': -1}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "here"))


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[[Stored], Driver]]:
    """Start workers of packages, and drivers for them."""
    drivers: list[Driver] = []

    def start(package: Stored) -> Driver:
        drivers.append(Driver(tmp_path / "storage", ENTRY, Supervisor(ENTRY, package=package)))
        drivers[-1].begin(target_step=9)
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.supervisor.close()


def test_two_packages_with_the_same_module_name_import_their_own_code(
    tmp_path: Path, drive: Callable[[Stored], Driver]
) -> None:
    """The packages run at the same time in two workers of one machine."""
    packages = [uploaded(tmp_path, value) for value in (7, 8)]
    drivers = [drive(package) for package in packages]
    for value, package, driver in zip((7, 8), packages, drivers, strict=True):
        driver.until_state("ended")
        metrics = driver.reports[-1]["metrics"]
        seen = json.loads(metrics["seen"])
        assert metrics["acc"] == seen["value"] == value
        assert seen["other"] == str(value)
        assert Path(seen["file"]).parts[-3] == Path(seen["first"]).name == package.digest
        own = (Path(f"/proc/{driver.supervisor.server.pid}/environ"), Path("/proc/self/environ"))
        assert package.digest not in "".join(path.read_text() for path in own)
    folders = list((tmp_path / "tmp").glob("tuner-worker-*/package/*/mine"))
    assert len(folders) == 2
    assert not any((folder / "__pycache__").exists() for folder in folders)


def test_package_changed_in_the_storage_is_refused_until_uploaded_again(
    tmp_path: Path, drive: Callable[[Stored], Driver]
) -> None:
    package = uploaded(tmp_path, 7)
    file = tmp_path / f"storage/default/packages/{package.digest}.zip"
    right = file.read_bytes()
    file.write_bytes(plain({"mine/train.py": "def train(config): return {'acc': 666}\n"}))
    driver = drive(package)
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == "import"
    assert "was changed in the storage" in failed["error"]["message"]
    assert driver.reports == []
    assert not psutil.Process(driver.supervisor.server.pid).children(recursive=True)
    file.write_bytes(right)
    driver.begin(target_step=9)
    driver.until_state("ended")
    assert driver.reports[-1]["metrics"]["acc"] == 7


def test_package_that_starts_threads_on_import_still_trains(
    tmp_path: Path, drive: Callable[[Stored], Driver]
) -> None:
    """The fork server restarts without importing the module in advance."""
    threads = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    driver = drive(uploaded(tmp_path, 9, threads + CODE))
    driver.until_state("ended")
    assert driver.reports[-1]["metrics"]["acc"] == 9


def test_probe_reads_the_package_instead_of_an_installed_module(tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine/helper.py").write_text("VALUE = 7\n")
    (folder / "mine/train.py").write_text(CODE)
    prober = SubprocessProber()
    assert prober.describe(ENTRY, folder).doc == "Of the package."
    assert prober.describe(ENTRY).doc == ""
    other = prober.describe("os.path:join", folder)
    assert "is not in the package" in str(other.error)
    assert not (folder / "mine/__pycache__").exists()


def test_program_runs_in_the_folder_of_its_package(tmp_path: Path, drive: Callable[[Stored], Driver]) -> None:
    script = """
import json, os
import helper
from mine.helper import VALUE

seen = {"where": os.getcwd(), "data": open("data.txt").read(), "writable": os.access(".", os.W_OK)}
with open(os.environ["TUNER_METRICS"], "a") as file:
    file.write(json.dumps({"acc": VALUE, "seen": json.dumps(seen)}) + "\\n")
"""
    files = {
        "mine/__init__.py": "",
        "mine/helper.py": "VALUE = 7\n",
        "run/train.py": script,
        "run/helper.py": "",
    }
    data = plain({**files, "data.txt": "of the package"})
    package = Stored(str(tmp_path / "storage"), "default", id_of(data))
    package.put(data)
    supervisor = Supervisor(PROGRAM_ENTRY, package=package)
    driver = Driver(tmp_path / "storage", PROGRAM_ENTRY, supervisor)
    try:
        driver.begin(target_step=9, config=program_config("python run/train.py", None, 9, {}))
        driver.until_state("ended")
    finally:
        supervisor.close()
    metrics = driver.reports[-1]["metrics"]
    seen = json.loads(metrics["seen"])
    assert (metrics["acc"], seen["data"]) == (7, "of the package")
    assert Path(seen["where"]).name == package.digest
