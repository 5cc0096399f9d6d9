"""Test which values a state may hold: they are restored exactly, and values that could not be restored are not
saved.
"""

from collections import Counter as Tally
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as arrays_of
from torch import nn

from tests.strategies import examples
from tuner.training import CheckpointUnreadable, SpotSafe, checkpoint, plain

steady = examples(60)
Point = namedtuple("Point", "x y")


class Anything:
    """A part with any state."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def saved_and_restored(state: Any, directory: Path) -> Any:
    with SpotSafe(part=Anything(state), steps=1, checkpoint_dir=directory) as run:
        next(run.steps())
        run.report(loss=1.0)
    restored = Anything()
    with SpotSafe(part=restored, steps=1, checkpoint_dir=directory):
        return restored.state


def same(value: Any, other: Any) -> bool:
    if type(value) is not type(other):
        return False
    if isinstance(value, numpy.ndarray | numpy.generic):
        return (value.dtype, value.shape, value.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return bool(value == other)


VALUES = [
    numpy.float64(0.1),
    numpy.float32("nan"),
    numpy.int64(-3),
    numpy.bool_(True),
    numpy.str_("words"),
    numpy.datetime64("2026-01-31T12:00"),
    numpy.zeros(2),
    numpy.zeros((0, 3)),
    numpy.array(2.5),
    numpy.arange(6, dtype=">i4").reshape(2, 3)[:, ::2],
    numpy.array([["a", "bcd"]]),
    numpy.array([1 + 2j, float("inf")]),
    {1, 2},
    torch.Size([2, 3]),
    torch.bfloat16,
    Tally("aab"),
    (1, [2.5, None, "three"], b"four", 2**100),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_state_is_restored_exactly(tmp_path: Path, value: Any) -> None:
    state = {"value": value, "deep": [(value,)], 3: OrderedDict(value=value)}
    restored = saved_and_restored(state, tmp_path)
    assert list(restored) == ["value", "deep", 3]
    assert same(restored["value"], value)
    assert same(restored["deep"][0][0], value)
    assert same(restored[3]["value"], value)


@steady
@given(array=arrays_of.arrays(arrays_of.scalar_dtypes(), arrays_of.array_shapes(min_dims=0, min_side=0)))
def test_arrays_are_restored_bit_for_bit(array: Any) -> None:
    assert same(plain.unpacked(plain.packed(array, "array")), array)
    turned = plain.unpacked(plain.packed(array.T, "array"))
    assert same(turned, array.T)
    assert turned.flags.f_contiguous == array.T.flags.f_contiguous


def test_restored_array_is_writable(tmp_path: Path) -> None:
    restored = saved_and_restored(numpy.zeros(2), tmp_path)
    restored += 1
    assert restored.tolist() == [1, 1]


def test_restored_dictionary_has_its_numpy_keys(tmp_path: Path) -> None:
    restored = saved_and_restored({numpy.int64(3): 1, numpy.str_("word"): 2}, tmp_path)
    assert (restored[numpy.int64(3)], restored[3], restored["word"]) == (1, 1, 2)


def test_numpy_learning_rate_is_saved_with_its_optimizer(tmp_path: Path) -> None:
    def optimizer(rate: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=rate)

    for rate in (numpy.float64(0.1), 0.0):
        saved_optimizer = optimizer(rate)
        with SpotSafe(optimizer=saved_optimizer, steps=1, checkpoint_dir=tmp_path) as run:
            for _ in run.steps():
                run.report(loss=1.0)
    assert saved_optimizer.param_groups[0]["lr"] == 0.1


def test_state_dict_keeps_its_version_metadata(tmp_path: Path) -> None:
    state = nn.BatchNorm1d(2).state_dict()
    restored = saved_and_restored(state, tmp_path)
    assert type(restored) is OrderedDict
    assert restored._metadata == state._metadata == {"": {"version": 2}}  # type: ignore[attr-defined]


def test_saved_state_is_a_copy() -> None:
    state = {"array": numpy.zeros(2), "tensor": torch.zeros(2), "list": [1], "set": {1}}
    taken = checkpoint.snapshot({"part": Anything(state)}, step=1)["parts"]["part"]
    state["array"] += 1
    state["tensor"] += 1
    state["list"].append(2)  # type: ignore[attr-defined]
    state["set"].add(2)  # type: ignore[attr-defined]
    unpacked = plain.unpacked(taken)
    assert unpacked["array"].tolist() == unpacked["tensor"].tolist() == [0, 0]
    assert (unpacked["list"], unpacked["set"]) == ([1], {1})


def test_defaultdict_is_restored_with_its_factory(tmp_path: Path) -> None:
    counts = saved_and_restored({"deep": [defaultdict(list, a=[numpy.float32(1)])]}, tmp_path)["deep"][0]
    counts["b"].append(2)
    assert counts == {"a": [1], "b": [2]}


@pytest.mark.parametrize(
    "mapping", [UserDict(a=numpy.float32(1)), defaultdict(lambda: 7, a=1)], ids=["UserDict", "defaultdict"]
)
def test_other_mappings_are_restored_as_dictionaries(tmp_path: Path, mapping: Any) -> None:
    restored = saved_and_restored({"inner": mapping}, tmp_path)["inner"]
    assert (type(restored), restored) == (dict, {"a": 1})


REFUSED = [
    numpy.array([object()]),
    numpy.zeros(1, dtype=[("a", "f4")]),
    numpy.random.default_rng(),
    numpy.ma.zeros(1),
    deque([1]),
    Point(1, 2),
    Anything(),
    lambda: None,
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_unsupported_value_is_refused_on_save_with_its_location(tmp_path: Path, value: object) -> None:
    with pytest.raises(TypeError, match=r"part\['inner'\]\[1\] is a .*" + type(value).__name__):
        saved_and_restored({"inner": [0, value]}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unsupported_key_is_refused() -> None:
    with pytest.raises(TypeError, match="the key Point"):
        plain.packed({Point(1, 2): 3}, "part")


FORGED = [
    numpy.array([1]),
    {plain._NUMPY: torch.zeros(8, dtype=torch.uint8), "dtype": "O", "shape": [1], "order": "C"},
    {plain._NUMPY: torch.zeros(8, dtype=torch.uint8), "dtype": "<f8", "shape": [10**6], "order": "C"},
]


@pytest.mark.parametrize("value", FORGED, ids=["NumPy's own pickle", "pointers", "out of bounds"])
def test_a_forged_array_is_refused(tmp_path: Path, value: Any) -> None:
    """NumPy's own reader would trust a forged type."""
    folder = tmp_path / "step_00000001"
    folder.mkdir()
    torch.save({"step": 1, "parts": {"part": value}, "random": {}}, folder / checkpoint.STATE_FILE)
    with (
        pytest.raises(CheckpointUnreadable),
        SpotSafe(part=Anything(), steps=2, checkpoint_dir=tmp_path),
    ):
        pass


def test_state_without_numpy_values_does_not_need_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "numpy")
    assert plain.unpacked(plain.packed({"a": (1, 2.0)}, "part")) == {"a": (1, 2.0)}
