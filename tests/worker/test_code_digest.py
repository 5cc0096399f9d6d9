"""Test which files count as the code of a trainable."""

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tuner.worker.environment import code_digest

FILES = {
    "mine/__init__.py": "",
    "mine/train.py": "import os\nfrom . import model\nfrom helpers.data import load\nimport torch\n",
    "mine/model.py": "from .layers.wide import Wide\n",
    "mine/layers/__init__.py": "",
    "mine/layers/wide.py": "class Wide: ...\n",
    "mine/unused.py": "x = 1\n",
    "helpers/__init__.py": "",
    "helpers/data.py": "def load(): ...\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def digest(root: Path, entry: str = "mine.train:train") -> str | None:
    return code_digest(entry, [str(root)])


USED = [name for name in FILES if name != "mine/unused.py"]


@pytest.mark.parametrize("name", USED)
def test_digest_changes_with_any_imported_module(root: Path, name: str) -> None:
    before = digest(root)
    (root / name).write_text(FILES[name] + "\n# changed\n")
    assert digest(root) != before
    (root / name).write_text(FILES[name])
    assert digest(root) == before


def test_digest_ignores_modules_that_are_not_imported(root: Path) -> None:
    before = digest(root)
    (root / "mine/unused.py").write_text("x = 2\n")
    assert digest(root) == before


def test_digest_does_not_depend_on_the_location(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    root.rename(elsewhere)
    before = code_digest("mine.train:train", [str(elsewhere)])
    elsewhere.rename(root)
    assert digest(root) == before


def test_functions_of_the_same_module_have_different_digests(root: Path) -> None:
    assert digest(root) != digest(root, "mine.train:other")


def test_code_without_a_file_has_no_digest(root: Path) -> None:
    assert digest(root, "nowhere.at.all:train") is None


def test_module_with_invalid_syntax_has_a_digest(root: Path) -> None:
    (root / "mine/train.py").write_text("def train(: not Python")
    assert digest(root) is not None


@pytest.fixture
def switches_during_collections() -> Iterator[None]:
    """Trigger frequent garbage collections, and let other threads run during each of them."""
    thresholds = gc.get_threshold()
    gc.callbacks.append(yields)
    gc.set_threshold(50)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(yields)


def yields(_phase: str, _info: object) -> None:
    time.sleep(1e-5)


@pytest.mark.usefixtures("switches_during_collections")
def test_threads_compute_the_same_digest_concurrently(root: Path) -> None:
    (root / "mine/model.py").write_text(
        "\n".join(f"x{number} = [a for a in (1, 2)]" for number in range(200))
    )
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: digest(root), range(32)))) == 1


def test_too_deeply_nested_source_has_a_digest(root: Path) -> None:
    (root / "mine/train.py").write_text("x = " + "-" * 100_000 + "1")
    assert digest(root) is not None


def test_code_with_an_unreadable_module_has_a_digest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read every file, so the refusal is simulated. An error would stop the launches of all jobs."""
    read_bytes = Path.read_bytes

    def refused(file: Path) -> bytes:
        if file.name == "model.py":
            raise PermissionError(file)
        return read_bytes(file)

    before = digest(root)
    monkeypatch.setattr(Path, "read_bytes", refused)
    assert digest(root) not in (None, before)
