"""Test tables of recorded curves: they are read as they were written, and tables that cannot be used are
refused with a reason.
"""

import contextlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.made_tables import SPACE, arrays, table, written
from tests.strategies import examples
from tests.tuning.test_samplers import build
from tuner.domain.job import SamplerName
from tuner.simulator import table_file
from tuner.simulator.recorded import RowsSampler
from tuner.simulator.table_file import TableError, load_table
from tuner.tuning.samplers.optuna import OptunaSampler
from tuner.tuning.samplers.simple import RandomSampler

NAMES: list[SamplerName] = ["tpe", "random", "gp", "cmaes", "qmc", "grid"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("tables") / "whole.npz").read_bytes()


def test_loaded_table_returns_the_written_values(tmp_path: Path) -> None:
    given_arrays = arrays()
    loaded = load_table(written(tmp_path / "t.npz", given_arrays))
    assert (loaded.name, loaded.steps, len(loaded.configs)) == ("t", 9, 40)
    assert list(loaded.space.parameters) == ["lr", "width", "1-momentum"]
    for row, config in enumerate(loaded.configs):
        assert loaded.space.contains(config)
        shown = loaded.shown(config)
        assert list(shown) == ["lr", "width", "momentum"]
        assert list(shown.values()) == pytest.approx(list(given_arrays["X"][row]))
        assert loaded.unit_of(config) == pytest.approx(loaded.unit[row])
        for step in (1, 9):
            assert loaded.value(config, step) == given_arrays["metric"][row, step - 1]
            assert loaded.step_ns(config, step) == round(given_arrays["time"][row, step - 1] * 1e9)
    assert ((loaded.unit >= -1e-12) & (loaded.unit <= 1 + 1e-12)).all()


def test_training_cost_is_row_mean_and_regret_is_normalised_by_median(tmp_path: Path) -> None:
    given_arrays = arrays()
    loaded = load_table(written(tmp_path / "t.npz", given_arrays))
    bests = given_arrays["metric"].max(axis=1)
    assert loaded.full_s == pytest.approx(given_arrays["time"].sum(axis=1).mean())
    assert loaded.mean_step_s == pytest.approx(given_arrays["time"].mean())
    assert loaded.normalised_regret(bests.max()) == 0
    assert loaded.normalised_regret(float(np.median(bests))) == pytest.approx(1)


def test_values_encoded_in_16_bits_are_decoded(tmp_path: Path) -> None:
    plain, coded = arrays(), arrays()
    coded["metric_aff"] = np.array([1e-4, -1.0])
    coded["metric"] = np.rint((plain["metric"] + 1) / 1e-4).astype(np.uint16)
    coded["time_aff"] = np.array([2e-4, 0.0], dtype=np.float32)
    coded["time"] = np.rint(np.log(plain["time"]) / coded["time_aff"][0]).astype(np.uint16)
    loaded = load_table(written(tmp_path / "t.npz", coded))
    assert loaded.metric == pytest.approx(plain["metric"], abs=1e-4)
    assert loaded.step_s == pytest.approx(plain["time"], rel=1e-3)


def test_duplicate_configurations_keep_only_the_first_row(tmp_path: Path) -> None:
    twice = arrays()
    twice["X"][7] = twice["X"][3]
    loaded = load_table(written(tmp_path / "t.npz", twice))
    assert len(loaded.configs) == 39
    assert loaded.value(loaded.configs[3], 9) == twice["metric"][3, 8]


# Errors


def changed(name: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    columns = arrays()
    columns[name] = change(columns[name])
    return columns


def put(value: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array = array.copy()
        array[2, 1] = value
        return array

    return change


def meta(change: Callable[[list[list[object]]], object]) -> dict[str, Any]:
    space: Any = json.loads(json.dumps(SPACE))
    return arrays() | {"meta": np.array(json.dumps({"space": change(space) or space}))}


def parameter(row: object) -> dict[str, Any]:
    return meta(lambda space: [row, *space[1:]])


BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "no metric": (lambda: {k: v for k, v in arrays().items() if k != "metric"}, "metric"),
    "no meta": (lambda: {k: v for k, v in arrays().items() if k != "meta"}, "meta"),
    "NaN in X": (lambda: changed("X", put(np.nan)), "X"),
    "infinity in the metric": (lambda: changed("metric", put(np.inf)), "metric"),
    "NaN in time": (lambda: changed("time", put(np.nan)), "time"),
    "a step for nothing": (lambda: changed("time", put(0)), "time"),
    "costs that fall": (lambda: changed("time", put(-1)), "time"),
    "a century": (lambda: changed("time", put(4e9)), "time"),
    "a flat metric": (lambda: changed("metric", lambda m: m * 0 + 0.5), "metric"),
    "text in X": (lambda: changed("X", lambda x: x.astype(str)), "X"),
    "complex numbers": (lambda: changed("metric", lambda m: m + 1j), "metric"),
    "objects": (lambda: changed("metric", lambda m: m.astype(object)), "metric is incomplete or has pickled"),
    "one dimension": (lambda: changed("metric", lambda m: m.ravel()), "metric"),
    "no steps": (lambda: changed("metric", lambda m: m[:, :0]), "metric"),
    "fewer steps than times": (lambda: changed("metric", lambda m: m[:, :5]), "do not match"),
    "fewer rows than configurations": (lambda: changed("X", lambda x: x[:9]), "do not match"),
    "one row": (lambda: {k: v[:1] if v.ndim else v for k, v in arrays().items()}, "at least 2"),
    "beyond a bound": (lambda: changed("X", lambda x: x * [2, 1, 1]), "lr"),
    "half a unit": (lambda: changed("X", put(9.5)), "width"),
    "a long code": (lambda: arrays() | {"metric_aff": np.array([1.0, 2.0, 3.0])}, "metric_aff"),
    "an overflowing code": (lambda: arrays() | {"time_aff": np.array([1e9, 0.0])}, "time_aff"),
    "meta that is no JSON": (lambda: arrays() | {"meta": np.array("{")}, "meta"),
    "deep meta": (lambda: arrays() | {"meta": np.array("[" * 10**5)}, "meta"),
    "meta without a space": (lambda: arrays() | {"meta": np.array("[]")}, "meta"),
    "meta that is a number": (lambda: arrays() | {"meta": np.array(3)}, "meta"),
    "a space that is a word": (lambda: arrays() | {"meta": np.array('{"space": "lr"}')}, "meta"),
    "too few parameters": (lambda: meta(lambda space: space[:2]), "meta"),
    "a name twice": (lambda: meta(lambda space: [space[0], space[1], space[0]]), "name"),
    "an unknown scale": (lambda: parameter(["lr", 1e-4, 1, "cubic", "float"]), "scale"),
    "an unknown type": (lambda: parameter(["lr", 1e-4, 1, "log", "complex"]), "type"),
    "a parameter of two words": (lambda: parameter(["lr", 1e-4]), "meta"),
    "a parameter that is a number": (lambda: parameter(3), "meta"),
    "bounds that are words": (lambda: parameter(["lr", "a", "b", "log", "float"]), "low and high are finite"),
    "a name that is kept": (lambda: parameter(["1-lr", 1e-4, 1, "log", "float"]), "lin1m"),
    "bounds turned round": (lambda: parameter(["lr", 1, 1e-4, "lin", "float"]), "low"),
    "a log scale from 0": (lambda: parameter(["lr", 0, 1, "log", "float"]), "log"),
    "lin1m up to 1": (lambda: meta(lambda s: [s[0], s[1], ["momentum", 0, 1, "lin1m", "float"]]), "log"),
    "an int of lin1m": (lambda: meta(lambda s: [s[0], ["width", 8, 64, "lin1m", "int"], s[2]]), "int"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_table_is_refused_with_file_and_place(tmp_path: Path, name: str) -> None:
    make, place = BAD[name]
    path = written(tmp_path / "bad.npz", make())
    with pytest.raises(TableError) as refused:
        load_table(path)
    assert str(path) in refused.value.detail
    assert place in refused.value.detail


@examples(150)
@given(at=st.integers(0, 10**9))
def test_a_truncated_file_is_refused(tmp_path: Path, whole: bytes, at: int) -> None:
    path = tmp_path / "cut.npz"
    path.write_bytes(whole[: at % len(whole)])
    with pytest.raises(TableError, match=r"cut\.npz"):
        load_table(path)


@examples(150)
@given(at=st.integers(0, 10**9), byte=st.integers(0, 255))
def test_damaged_file_is_refused_or_loads_as_valid_table(
    tmp_path: Path, whole: bytes, at: int, byte: int
) -> None:
    path = tmp_path / "damaged.npz"
    damaged = bytearray(whole)
    damaged[at % len(whole)] = byte
    path.write_bytes(damaged)
    with contextlib.suppress(TableError):
        assert len(load_table(path).configs) >= 2


def test_truncated_array_inside_a_valid_archive_is_named(tmp_path: Path) -> None:
    source = written(tmp_path / "whole.npz", arrays())
    with zipfile.ZipFile(source) as whole, zipfile.ZipFile(tmp_path / "cut.npz", "w") as cut:
        for member in whole.namelist():
            content = whole.read(member)
            cut.writestr(member, content[: len(content) // 2] if member == "time.npy" else content)
    with pytest.raises(TableError, match=r"cut\.npz: time is incomplete"):
        load_table(tmp_path / "cut.npz")


def test_array_that_is_too_large_when_unpacked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "MAX_BYTES", 2000)
    path = written(tmp_path / "huge.npz", arrays(rows=1000))
    with pytest.raises(TableError, match=r"X has \d+ bytes: at most 2000"):
        load_table(path)


def test_archive_without_valid_arrays_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        for name in ("X", "metric", "time", "meta"):
            archive.writestr(f"{name}.npy", b"no array")
    np.save(tmp_path / "one.npy", arrays()["X"])
    (tmp_path / "text.npz").write_text("lr,acc\n1,2\n")
    for name in ("t.npz", "one.npy", "text.npz", "none.npz", "."):
        with pytest.raises(TableError):
            load_table(tmp_path / name)


# Rows for suggestions


@pytest.mark.parametrize("name", NAMES)
def test_each_row_is_suggested_once_even_after_a_restart(tmp_path: Path, name: SamplerName) -> None:
    recorded = table(tmp_path)

    def sampler() -> RowsSampler:
        return RowsSampler(recorded, build(name, recorded.space))

    first = sampler()
    log = []
    for number in range(40):
        config = first.suggest(number)
        assert config in recorded.configs
        log.append(config)
        first.tell(number, 1, recorded.value(config, 1), 0, at_rung=True)
    assert len({str(config) for config in log}) == 40
    assert first.suggest(40) is None
    again = sampler()
    for number in range(20):
        again.adopt(number, log[number])
        again.tell(number, 1, recorded.value(log[number], 1), 0, at_rung=True)
    for number in range(20, 30):
        assert again.suggest(number) == log[number]
        again.tell(number, 1, recorded.value(log[number], 1), 0, at_rung=True)


def test_suggestion_is_replaced_by_the_nearest_row(tmp_path: Path) -> None:
    recorded = table(tmp_path)
    plain, rows = RandomSampler(recorded.space, 3), RowsSampler(recorded, RandomSampler(recorded.space, 3))
    proposed = plain.suggest(0)
    distances = np.linalg.norm(recorded.unit - recorded.unit_of(proposed or {}), axis=1)
    assert rows.suggest(0) == recorded.configs[int(np.argmin(distances))]


def test_tpe_learns_from_the_row_and_not_from_its_proposal(tmp_path: Path) -> None:
    """TPE learns only the first steps of 400 rows and still finds the good learning rates. The mean row is 1.0
    away.
    """
    recorded = table(tmp_path, rows=400)
    sampler = RowsSampler(recorded, build("tpe", recorded.space))
    distance = []
    for number in range(60):
        config = sampler.suggest(number)
        assert config is not None
        sampler.tell(number, 1, recorded.value(config, 1), 0, at_rung=True)
        distance.append(abs(np.log10(float(str(config["lr"]))) + 2))
    assert np.mean(distance[40:]) < 0.6


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "qmc"])
def test_adopted_row_replaces_the_suggestion_in_optuna(tmp_path: Path, name: SamplerName) -> None:
    recorded = table(tmp_path)
    sampler = build(name, recorded.space)
    assert isinstance(sampler, OptunaSampler)
    proposed = sampler.suggest(0)
    assert proposed not in recorded.configs
    sampler.adopt(0, recorded.configs[5])
    assert [trial.params for trial in sampler._study.trials] == [recorded.configs[5]]
