"""Test what a fork server imports before the first attempt: what the code needs, and no more."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tuner.worker.fork_server import needs_dynamo

OPTIMISES = "import torch\n\ndef train(config):\n    torch.optim.SGD([torch.zeros(1)], 0.1)\n"


@pytest.mark.parametrize(
    ("source", "needs"),
    [
        (OPTIMISES, True),
        ("from torch import compile", True),
        ("import torch\nfrom torch.utils.checkpoint import checkpoint", True),
        ("import torch\n\ndef train(config):\n    return torch.zeros(1)  # as the checkpoint has it", False),
        ("optimise = 'a search without PyTorch'", False),
    ],
)
def test_use_of_optimizers_is_detected_from_the_source(
    source: str, needs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_module_of_somebody.py").write_text(source)
    module = ModuleType("a_module_of_somebody")
    module.__file__ = str(tmp_path / "a_module_of_somebody.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert needs_dynamo([module.__name__, "json", "builtins"]) is needs


def test_modules_that_raise_on_attribute_access_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ImportError(name)

    named = ModuleType("named_by_a_path")
    named.__file__ = Path("somewhere.py")  # type: ignore[assignment]
    for module in (Lazy("a_lazy_one"), named):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert not needs_dynamo(["a_lazy_one", "named_by_a_path", "gone_meanwhile"])


@pytest.mark.parametrize(
    ("source", "torch"),
    [("", False), ("def later():\n    from tuner.training import SpotSafe\n", True)],
    ids=["without", "with"],
)
def test_torch_is_imported_once_for_all_attempts_if_the_code_may_need_it(
    source: str, torch: bool, drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half of PyTorch that only optimizers need is imported in neither case."""
    module = f"imports_little_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        "import sys\ndef train(config):\n"
        "    names = {name: 'tor' + 'ch' + name in sys.modules for name in ('', '._dynamo')}\n"
        "    return {'acc': 1, 'imported': names[''], 'dynamo': names['._dynamo']}\n" + source
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    driver.run_to(1)
    assert driver.reports[0]["metrics"] == {"acc": 1, "imported": torch, "dynamo": False}


def test_optimizer_imports_are_preloaded_for_attempts(drive: Any) -> None:
    driver = drive("tells_first", "tests.worker.restoring")
    driver.run_to(1)
    assert driver.reports[0]["metrics"]["dynamo"] == 1
