"""Trainables are found by reading source files: nothing is imported, and the work is bounded."""

from pathlib import Path

import pytest

from tuner.service import trainable_search
from tuner.service.trainable_search import listed
from tuner.worker.child import ASYNC_FUNCTION

TRAIN = "def train(config): ...\n"
# A module that cannot be imported, so that a test fails if something imports it.
OWN = '''"""About the module."""
raise SystemExit("imported")
SEARCH_SPACE: dict = {"lr": {"type": "float", "low": 1e-3, "high": 1.0}}
OBJECTIVE = {"metric": "loss", "mode": "min"}

def train(config):
    """Train it."""

def fit(settings, *, data=None):
    for loss in range(3):
        tune.report({"loss": loss})

class Old(tune.Trainable): ...

def _private(config): ...
def load(config): ...
def train_one_epoch(model, loader): ...
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder the service's working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def names(*allowed: str) -> list[str]:
    """Return the user's own trainables, without those that come with the project."""
    return [
        listed_trainable.trainable
        for listed_trainable in listed(allowed).items
        if not listed_trainable.trainable.startswith("trainables.")
    ]


def test_user_modules_are_listed_without_importing_them(folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    by_name = {listed_trainable.trainable: listed_trainable for listed_trainable in listed(("*",)).items}
    assert {name for name in by_name if name.startswith("own")} == {"own:train", "own:fit", "own:Old"}
    train = by_name["own:train"]
    assert (train.doc, by_name["own:fit"].doc, train.error) == ("Train it.", "About the module.", None)
    assert train.search_space == {"lr": {"type": "float", "low": 0.001, "high": 1.0}}
    assert train.objective == {"metric": "loss", "mode": "min"}
    assert "trainables.digits_mlp:train" in by_name, "the shipped ones, after one's own"
    assert by_name["trainables.digits_mlp:train"].search_space


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def make(config): ...\nfit = Packed(make=make)", ["fit"]),
        ("def run(cfg): ...\ndef build(model, cfg): ...\n", ["run"]),
        ("def run(a, b=1): report(a)\n", ["run"]),
        ("def run(a, *, config): report(a)\n", []),
        ("def run(*args): report(args)\n", ["run"]),
        ("def run(x):\n    return x  # a report of the config\n", []),
        ("from functools import partial\ntrain = partial(print)\n", ["train"]),
        ("from elsewhere import train\n", ["train"]),
        ("from elsewhere import train as test\n", []),
        ("SEARCH_SPACE = make()\ndef train(config): ...\n", ["train"]),
        ("SEARCH_SPACE = [1]\ndef train(config): ...\n", ["train"]),
        ("def train(config: ...\n", []),
        ("def train(config): return '\\d'\n", ["train"]),
        ("\0def train(config): ...\n", []),
        ("def train(config): return " + "(" * 5000 + ")" * 5000 + "\n", []),
        ("def train(config): ...\n#" + "x" * trainable_search.FILE_BYTES_MAX, []),
    ],
)
def test_functions_and_names_that_count_as_trainables(folder: Path, source: str, expected: list[str]) -> None:
    (folder / "own.py").write_text(source)
    assert names("*") == [f"own:{name}" for name in expected]
    assert all(listed_trainable.search_space is None for listed_trainable in listed(("own",)).items)


@pytest.mark.parametrize(
    ("source", "listed_names", "has_error"),
    [
        ("async def train(config): ...\n", ["train"], True),
        ("async def fit(settings):\n    tune.report({'loss': 1})\n", ["fit"], True),
        ("async def main(config): ...\n", ["main"], True),
        ("async def _private(config): ...\nasync def load(path): ...\n", [], False),
        ("@as_function\nasync def train(config): ...\n", ["train"], False),
        ("async def train(config): ...\ntrain = as_function(train)\n", ["train"], False),
        ("async def train(config): ...\ndef train(config): ...\n", ["train"], False),
    ],
)
def test_async_functions_are_listed_with_the_reason_why_they_cannot_be_tuned(
    folder: Path, source: str, listed_names: list[str], has_error: bool
) -> None:
    (folder / "own.py").write_text(source)
    items = listed(("own",)).items
    assert [item.trainable for item in items] == [f"own:{name}" for name in listed_names]
    for item in items:
        assert (item.error is not None) is has_error
        assert item.error in (None, ASYNC_FUNCTION.format(entry=item.trainable))


def test_async_function_does_not_hide_a_function_that_takes_a_configuration(folder: Path) -> None:
    (folder / "own.py").write_text("async def train(config): ...\ndef run(config): ...\n")
    errors = {item.trainable: item.error for item in listed(("own",)).items}
    assert errors["own:run"] is None
    assert "is an async function" in str(errors["own:train"])


def test_folders_without_user_code_are_skipped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "a/b/one",
        "a/two",
        "tests/three",
        "venv2/four",
        "with-dash/five",
        ".hidden/six",
        "tuner/seven",
    ):
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TRAIN)
    for name in ("test_eight", "conftest", "torch", "_nine"):
        (folder / f"{name}.py").write_text(TRAIN)
    (folder / "venv2" / "pyvenv.cfg").touch()
    (folder / "a" / "loop").symlink_to(folder)
    assert names("*") == ["a.two:train", "a.b.one:train"]
    assert names("a.b", "trainables") == ["a.b.one:train"]
    assert names("nowhere", "trainables") == []
    elsewhere = folder / ".hidden"
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    assert names("six") == ["six:train"]
    assert names("*") == ["six:train", "a.two:train", "a.b.one:train"]


def test_changed_file_is_read_again(folder: Path) -> None:
    (folder / "own.py").write_text(TRAIN)
    assert names("*") == ["own:train"]
    (folder / "own.py").write_text("def report_all(config): ...\n")
    assert names("*") == ["own:report_all"]
    (folder / "own.py").unlink()
    assert names("*") == []


@pytest.mark.parametrize(("bound", "most"), [("FILES_MAX", 2), ("FOLDERS_MAX", 2), ("DEPTH_MAX", 2)])
def test_listing_is_bounded_and_marked_as_truncated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    for name in ("a/b/c/four", "a/b/three", "a/two", "one"):
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TRAIN)
    assert names("*") == ["one:train", "a.two:train", "a.b.three:train", "a.b.c.four:train"]
    assert not listed(("*",)).truncated
    monkeypatch.setattr(trainable_search, bound, most)
    assert names("*") == ["one:train", "a.two:train"]
    assert listed(("*",)).truncated
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert listed(("*",), read_s=-1) == trainable_search.TrainableListing([], truncated=True)
