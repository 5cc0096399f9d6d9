"""Trainables are inspected in a separate process. Faults in a module are reported and do no harm."""

import json
import math
import sys
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from uuid import uuid4

import psutil
import pytest

from tests import fakes
from tuner.domain.errors import Unavailable
from tuner.service import trainables
from tuner.service.trainables import Described, SubprocessProber, is_allowed
from tuner.worker import probe
from tuner.worker.limits import UserCodeLimits


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainables, "PROBE_TIMEOUT_S", 600.0)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory on the path in which trainables are found."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_faults_of_a_module_are_reported(modules: Path) -> None:
    (modules / "probed_wrong.py").write_text("VALUE = 1\nprint('noise')\n")
    (modules / "probed_deadly.py").write_text("import os\nos._exit(3)\n")
    prober = SubprocessProber()
    assert "nowhere_at_all" in probe.describe("nowhere_at_all:train")["error"]
    assert "train" in str(prober.describe("probed_wrong:train").error)
    assert "status 3" in str(prober.describe("probed_deadly:train").error)
    (modules / "probed_shell.py").write_text(
        "from os import system\nfrom functools import cache\n@cache\ndef train(config): ...\n"
    )
    assert "the standard library's module" in probe.describe("probed_shell:system")["error"]
    assert probe.describe("probed_shell:train")["error"] is None
    (modules / "probed_strange.py").write_text("import os\nos.write(1, b'\\xff\\n5\\n')\nos._exit(0)\n")
    assert "status 0" in str(prober.describe("probed_strange:train").error)


@pytest.mark.parametrize("body", ["...", "yield 1"])
def test_async_function_is_refused(body: str, modules: Path) -> None:
    """Calling it would return at once, and the trial would end without a report."""
    module = f"probed_async_{len(body)}"
    (modules / f"{module}.py").write_text(f"async def train(config):\n    {body}\n")
    error = str(probe.describe(f"{module}:train")["error"])
    assert error.startswith(f"NotTrainable: {module}:train is an async function; write a function with def")


def test_function_without_a_configuration_parameter_is_refused(modules: Path) -> None:
    (modules / "probed_shapes.py").write_text(
        "def none(): ...\ndef two(config, data): ...\ndef good(config, data=None): ...\ndef any_(*args): ...\n"
        "def named(*, config): ...\nclass Class: ...\n"
    )
    errors = {
        name: probe.describe(f"probed_shapes:{name}")["error"]
        for name in ("none", "two", "good", "any_", "named", "Class")
    }
    assert errors["none"] == "none() cannot be called with one configuration; write it as def none(config)"
    assert "two(config, data) cannot be called" in str(errors["two"])
    assert "named(*, config) cannot be called" in str(errors["named"])
    assert (errors["good"], errors["any_"], errors["Class"]) == (None, None, None)


def test_trainable_that_trains_in_batches_is_recognized(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Packed:
        def __call__(self, config: object) -> None: ...

    (modules / "probed_packed.py").write_text(
        "import sys\ndef train(config): ...\n"
        "packed = sys.modules['tuner.training.packed'].Packed() if 'tuner.training.packed' in sys.modules else train\n"
    )
    # other tests of this process may have imported it
    monkeypatch.delitem(sys.modules, "tuner.training.packed", raising=False)
    assert not probe.describe("probed_packed:train")["trains_in_batches"]
    monkeypatch.delitem(sys.modules, "probed_packed")
    monkeypatch.setitem(sys.modules, "tuner.training.packed", SimpleNamespace(Packed=Packed))
    assert probe.describe("probed_packed:packed")["trains_in_batches"]
    assert not probe.describe("probed_packed:train")["trains_in_batches"]
    assert not SubprocessProber().describe("probed_packed:train").trains_in_batches


def test_module_output_does_not_break_the_probe(modules: Path) -> None:
    (modules / "probed_loud.py").write_text(
        "import atexit, os\natexit.register(print, 'bye')\nos.write(1, b'\\xff\\xfe')\ndef train(config): ...\n"
    )
    assert SubprocessProber().describe("probed_loud:train").error is None


def test_module_gets_no_arguments(modules: Path) -> None:
    (modules / "probed_arguments.py").write_text(
        "import sys\nassert sys.argv[1:] == []\ndef train(config): ...\n"
    )
    assert SubprocessProber().describe("probed_arguments:train").error is None


def test_module_sees_the_environment_of_a_worker(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_USER_DATA", "here")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    (modules / "probed_reading.py").write_text(
        "import os\nassert os.environ['TUNER_USER_DATA'] == 'here'\n"
        "assert os.environ['CUDA_VISIBLE_DEVICES'] == ''\n"
        "assert 'AWS_SECRET_ACCESS_KEY' not in os.environ\ndef train(config): ...\n"
    )
    assert SubprocessProber().describe("probed_reading:train").error is None


def test_trainable_is_described_again_when_its_file_changes(modules: Path) -> None:
    file = modules / "probed_right.py"
    file.write_text('SEARCH_SPACE = {"a": 1}\ndef train(config):\n    """First."""\n')
    prober = SubprocessProber()
    description = prober.describe("probed_right:train")
    assert (description.error, description.doc, description.search_space) == (None, "First.", {"a": 1})
    assert prober.describe("probed_right:train") is description
    file.write_text('def train(config):\n    """Another one."""\n')
    assert prober.describe("probed_right:train").doc == "Another one."


def test_concurrent_requests_share_one_probe_and_failures_are_not_cached(modules: Path) -> None:
    seen = modules / "seen"
    (modules / "probed_slow.py").write_text(
        f"import time\nopen({str(seen)!r}, 'a').write('x')\ntime.sleep(1)\ndef train(config): ...\n"
    )
    (modules / "probed_gone.py").write_text(f"open({str(seen)!r}, 'a').write('y')\n")
    prober = SubprocessProber()
    with ThreadPoolExecutor(8) as pool:
        descriptions = list(pool.map(prober.describe, ["probed_slow:train"] * 8))
    assert seen.read_text() == "x"
    assert descriptions == [descriptions[0]] * 8
    for _ in range(2):
        assert prober.describe("probed_gone:train").error
    assert seen.read_text() == "xyy", "the trainable may be fixed at any time"


def test_failure_to_start_the_probe_is_not_cached(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (modules / "probed_later.py").write_text("def train(config): ...\n")
    prober = SubprocessProber()
    monkeypatch.setattr(trainables.subprocess, "Popen", _none_left)
    with pytest.raises(OSError, match="no more processes"):
        prober.describe("probed_later:train")
    monkeypatch.undo()
    monkeypatch.setenv("PYTHONPATH", str(modules))
    assert prober.describe("probed_later:train").error is None


def test_probe_without_a_free_place_is_refused(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (modules / "probed_next.py").write_text("def train(config): ...\n")
    prober = SubprocessProber()
    monkeypatch.setattr(trainables, "ROOM_S", 0.01)
    occupied = [prober._room.acquire(timeout=0) for _ in range(trainables.AT_ONCE)]
    assert all(occupied)
    with pytest.raises(Unavailable, match="4 other trainables are being imported; try again"):
        prober.describe("probed_next:train")
    prober._room.release()
    assert prober.describe("probed_next:train").error is None


def test_only_some_requests_may_wait_for_an_import(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other threads of the service keep answering requests."""
    (modules / "probed_awaited.py").write_text("def train(config): ...\n")
    begun, ends, entry = Event(), Event(), "probed_awaited:train"

    def slow_probe(*_: object) -> Described:
        begun.set()
        assert ends.wait(600)
        return Described(entry)

    monkeypatch.setattr(trainables, "_probe", slow_probe)
    monkeypatch.setattr(trainables, "WAITING", 2)
    prober = SubprocessProber()
    with ThreadPoolExecutor(4) as pool:
        imports = pool.submit(prober.describe, entry)
        assert begun.wait(60)
        others = [pool.submit(prober.describe, entry) for _ in range(3)]
        try:
            refused, _ = wait(others, 60, FIRST_COMPLETED)
            with pytest.raises(
                Unavailable, match="2 other requests wait for imports of trainables; try again"
            ):
                refused.pop().result(0)
        finally:
            ends.set()
    answered = [future for future in (imports, *others) if future.exception() is None]
    assert [future.result() for future in answered] == [imports.result()] * 3
    assert prober.describe(entry) is imports.result()


def _none_left(*_: object, **__: object) -> None:
    raise OSError("no more processes")


@pytest.mark.parametrize(
    ("entry", "allowed", "verdict"),
    [
        ("trainables.a:train", ("trainables",), True),
        ("trainables:train", ("trainables",), True),
        ("trainables_x:train", ("trainables",), False),
        ("os:system", ("trainables",), False),
        ("os:system", ("*",), True),
        ("a.b.c:d", ("x", "a.b"), True),
        ("a:d", (), False),
    ],
)
def test_modules_are_allowed_by_whole_names(entry: str, allowed: tuple[str, ...], verdict: bool) -> None:
    assert is_allowed(entry, allowed) is verdict


GREEDY = {
    "memory": (
        "eaten = []\nwhile True:\n    eaten.append(bytearray(1 << 20))\n",
        "(TUNER_IMPORT_MEMORY_GIB); load data in a function that is decorated with `prepare`",
    ),
    "processes": (
        "import subprocess, time\n"
        "for _ in range(60):\n    subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "time.sleep(1000)\n",
        "TUNER_MAX_PROCESSES",
    ),
    "files": ("import os\nheld = [open(os.devnull) for _ in range(200)]\n", "Too many open files"),
}


@pytest.mark.parametrize(("source", "message"), GREEDY.values(), ids=GREEDY)
def test_module_that_exceeds_a_limit_is_refused_with_the_limit(
    modules: Path, source: str, message: str
) -> None:
    (modules / "probed_greedy.py").write_text(source)
    prober = SubprocessProber(UserCodeLimits(processes=30, open_files=100, import_bytes=300 << 20))
    assert message in str(prober.describe("probed_greedy:train").error)


def test_module_that_prints_endlessly_is_stopped(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainables, "PROBE_TIMEOUT_S", 1.0)
    (modules / "probed_endless.py").write_text("import os\nwhile True:\n    os.write(1, b'x' * 65536)\n")
    assert "more than 1 s" in str(SubprocessProber().describe("probed_endless:train").error)


def test_probe_leaves_no_processes_or_temporary_files(modules: Path) -> None:
    mark = str(uuid4())
    (modules / "probed_leaving.py").write_text(
        f"import os, subprocess, tempfile\n__doc__ = tempfile.mkdtemp()\nif os.fork() == 0:\n    os.setsid()\n"
        f'    subprocess.Popen(["sh", "-c", "sleep 1000; : {mark}"])\n    os._exit(0)\ndef train(config): ...\n'
    )
    description = SubprocessProber().describe("probed_leaving:train")
    assert description.error is None
    assert description.doc
    assert not Path(description.doc).exists()
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or [])]


def test_texts_that_are_not_valid_unicode_are_replaced(modules: Path) -> None:
    (modules / "probed_named.py").write_text("raise FileNotFoundError('caf\\udce9.csv')\n")
    space = "SEARCH_SPACE = {'caf\\udce9': ['caf\\udce9']}\n"
    # Python 3.13 can parse a module with such a docstring, but not import it.
    (modules / "probed_listed.py").write_text(space + "def train(config):\n    'caf\\udce9'\n")
    (modules / "probed_spaces.py").write_text(
        space + "def train(config):\n    pass\ntrain.__doc__ = 'caf\\udce9'\n"
    )
    service = fakes.service_in(modules / "home")
    settings = replace(service.settings, allowed_modules=("*",))
    client = fakes.client_of(replace(service, settings=settings, prober=SubprocessProber()))
    refused = client.post("/v1/jobs", json=fakes.body(trainable="probed_named:train"))
    assert refused.status_code == 422
    assert "cannot be trained: FileNotFoundError: caf?.csv" in refused.json()["detail"]
    shown = client.get("/v1/trainables/probed_spaces:train").json()
    assert (shown["doc"], shown["search_space"]) == ("caf?", {"caf?": ["caf?"]})
    listed = client.get("/v1/trainables").json()["items"]
    assert [
        (item["doc"], item["search_space"]) for item in listed if "probed_listed" in item["trainable"]
    ] == [(shown["doc"], shown["search_space"])]
    service.database.dispose()


@pytest.mark.parametrize(
    "search_space",
    [{"a": math.nan}, {"a": [-math.inf]}, {"a": json.loads("[" * 40 + "]" * 40)}, [1], "a"],
)
def test_values_that_no_answer_can_have_are_dropped(search_space: object) -> None:
    plain = {"doc": 1, "error": ["a"], "code": {}, "import_ns": -1, "trains_in_batches": 1, "else": 0}
    described = Described.parse("module:train", {**plain, "search_space": search_space})
    assert described == Described("module:train")


@pytest.mark.parametrize("depth", [33, 300, 930, 960, 2000])
def test_deeply_nested_search_space_is_ignored(modules: Path, depth: int) -> None:
    module = f"probed_deep_{depth}"
    (modules / f"{module}.py").write_text(
        f"SEARCH_SPACE = {{}}\nfor _ in range({depth} - 1):\n    SEARCH_SPACE = {{'a': SEARCH_SPACE}}\ndef train(config): ...\n"
    )
    assert probe.describe(f"{module}:train")["search_space"] is None
    description = SubprocessProber().describe(f"{module}:train")
    assert (description.error, description.search_space) == (None, None)


@pytest.mark.parametrize("depth", [930, 960, 2000])
def test_deeply_nested_answer_of_user_code_is_refused(modules: Path, depth: int) -> None:
    """User code runs in the process that writes the answer, so it may write anything."""
    module = f"probed_forging_{depth}"
    (modules / f"{module}.py").write_text(
        f"import os\ntext = b'{{\"doc\": ' + b'[' * {depth} + b']' * {depth} + b'}}'\n"
        "for number in range(3, 20):\n"
        "    try:\n        os.write(number, text)\n    except OSError:\n        pass\n"
        "os._exit(0)\n"
    )
    described = SubprocessProber().describe(f"{module}:train")
    assert described.search_space is None
    assert not described.doc


def test_oversized_search_space_is_ignored(modules: Path) -> None:
    (modules / "probed_huge.py").write_text("SEARCH_SPACE = {'a': 'x' * 3_000_000}\ndef train(config): ...\n")
    description = SubprocessProber().describe("probed_huge:train")
    assert (description.error, description.search_space) == (None, None)
