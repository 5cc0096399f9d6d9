"""Trainables are looked at in a process of their own: what is wrong with one is told, and harms nobody."""

from pathlib import Path

import pytest

from tests.fakes import FakeProber
from tuner.service import trainables
from tuner.service.trainables import SubprocessProber, is_allowed, listed


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainables, "PROBE_TIMEOUT_S", 600.0)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that trainables are looked for in."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_what_is_wrong_with_a_module_is_told(modules: Path) -> None:
    (modules / "probed_wrong.py").write_text("VALUE = 1\nprint('noise')\n")
    (modules / "probed_deadly.py").write_text("import os\nos._exit(3)\n")
    prober = SubprocessProber()
    assert "nowhere_at_all" in str(prober.describe("nowhere_at_all:train").error)
    assert "train" in str(prober.describe("probed_wrong:train").error)
    assert "status 3" in str(prober.describe("probed_deadly:train").error)
    (modules / "probed_strange.py").write_text("import os\nos.write(1, b'\\xff\\n5\\n')\nos._exit(0)\n")
    assert "status 0" in str(prober.describe("probed_strange:train").error)


def test_a_module_may_print_whatever_it_likes_whenever_it_likes(modules: Path) -> None:
    (modules / "probed_loud.py").write_text(
        "import atexit, os\natexit.register(print, 'bye')\nos.write(1, b'\\xff\\xfe')\ndef train(config): ...\n"
    )
    assert SubprocessProber().describe("probed_loud:train").error is None


def test_a_module_sees_what_a_worker_would_see(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_USER_DATA", "here")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    (modules / "probed_reading.py").write_text(
        "import os\nassert os.environ['TUNER_USER_DATA'] == 'here'\n"
        "assert 'AWS_SECRET_ACCESS_KEY' not in os.environ\ndef train(config): ...\n"
    )
    assert SubprocessProber().describe("probed_reading:train").error is None


def test_a_trainable_is_described_and_seen_anew_when_its_file_changes(modules: Path) -> None:
    file = modules / "probed_right.py"
    file.write_text('SEARCH_SPACE = {"a": 1}\ndef train(config):\n    """First."""\n')
    prober = SubprocessProber()
    found = prober.describe("probed_right:train")
    assert (found.error, found.doc, found.search_space) == (None, "First.", {"a": 1})
    assert prober.describe("probed_right:train") is found
    file.write_text('def train(config):\n    """Another one."""\n')
    assert prober.describe("probed_right:train").doc == "Another one."


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


def test_all_modules_that_are_allowed_are_listed_and_those_without_train_are_not(modules: Path) -> None:
    package = modules / "probed_many"
    package.mkdir()
    for name in ("__init__", "_hidden", "one", "two", "three"):
        (package / f"{name}.py").write_text("")
    missing = {"probed_many.two:train": "AttributeError: module has no attribute 'train'"}
    prober = FakeProber({**missing, "probed_many.three:train": "ImportError: torch"})
    found = {one.trainable: one.error for one in listed(prober, ["probed_many"])}
    assert found == {"probed_many.one:train": None, "probed_many.three:train": "ImportError: torch"}
