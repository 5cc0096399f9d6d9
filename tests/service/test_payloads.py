"""Malicious files that run code in a naive reader. The service, its workers and its command line do not run it."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer import BadParameter

from tests import fakes
from tests.fakes import FakeService
from tests.service.restoring import back_up, put_back
from tests.simulation.made_tables import arrays
from tuner.checkpoints.checkpoints import MANIFEST, CheckpointDamaged, CheckpointId, CheckpointStore
from tuner.cli.job_yaml import JobYaml, read_job
from tuner.cluster.node_types import read_node_types
from tuner.domain.errors import BadFile, TunerError
from tuner.simulator.table_file import TableError, load_table
from tuner.store.backup_file import ABOUT, About, digest, pack, unpack

REAL = [pickle.UnpicklingError, RuntimeError, ValueError, TypeError]


class Touch:
    """An object that creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self._marker,)


class Evaluate(Touch):
    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return eval, (f"open({str(self._marker)!r}, 'w')",)


class LoadAgain(Touch):
    """An object that loads the payload through PyTorch's own `torch.load`."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        import torch  # imported here, as in all functions of this file, because it takes seconds

        inner = self._marker.with_name("inner.pt")
        torch.save(Touch(self._marker), inner)
        return torch.load, (str(inner), None, None)


def by_hand(marker: Path) -> bytes:
    """Return a pickle that no pickler would write: it names the global on the stack."""
    return b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c" + _short(f"touch {marker}") + b"\x85R."


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def as_torch(what: object, *, packed: bool = True) -> bytes:
    import torch

    file = io.BytesIO()
    torch.save(what, file, _use_new_zipfile_serialization=packed)
    return file.getvalue()


def forged_torch(marker: Path) -> bytes:
    """Return a PyTorch archive whose pickle was replaced."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", by_hand(marker))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
        archive.writestr("../../marker", b"")
    return file.getvalue()


def in_a_state(what: object) -> dict[str, object]:
    import torch

    return {"step": 1, "parts": {"model": {"weight": torch.zeros(1), "extra": what}}, "random": {}}


def linear() -> object:
    import torch

    return torch.nn.Linear(1, 1)


def as_table(**changed: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **(arrays() | changed))
    return file.getvalue()


def table_of(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def endless_array() -> bytes:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def objects(marker: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Touch(marker)]))
    return file.getvalue()


STATES: dict[str, Callable[[Path], bytes]] = {
    "a state with an object": lambda marker: as_torch(in_a_state(Touch(marker))),
    "a state of the old format": lambda marker: as_torch(in_a_state(Touch(marker)), packed=False),
    "a bare pickle": lambda marker: pickle.dumps(in_a_state(Touch(marker))),
    "a bare pickle of the first protocol": lambda marker: pickle.dumps(Touch(marker), protocol=0),
    "an evaluated text": lambda marker: as_torch(in_a_state(Evaluate(marker))),
    "a load within a load": lambda marker: as_torch(in_a_state(LoadAgain(marker))),
    "a forged archive": forged_torch,
    "a pickle by hand": by_hand,
    "objects of NumPy": lambda marker: as_torch(in_a_state(np.array([Touch(marker)], dtype=object))),
    "a key": lambda marker: as_torch({Touch(marker): 1}),
    "a class of a parameter": lambda marker: as_torch(linear()),
}
TABLES: dict[str, Callable[[Path], bytes]] = {
    "a pickle": lambda marker: pickle.dumps(Touch(marker)),
    "a column of objects": lambda marker: as_table(X=np.array([[Touch(marker)]] * 40)),
    "objects as meta": lambda marker: as_table(meta=np.array([Touch(marker)])),
    "a single array of objects": objects,
    "members that are pickles": lambda marker: table_of(
        {name: pickle.dumps(Touch(marker)) for name in ("X", "metric", "time", "meta")}
    ),
    "names that climb": lambda marker: table_of({f"../{n}.npy": objects(marker) for n in ("X", "marker")}),
    "an array without end": lambda marker: table_of(
        {f"{name}.npy": endless_array() for name in ("X", "metric", "time", "meta")}
    ),
}
YAMLS: dict[str, str] = {
    "apply": "!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [MARKER]]",
    "apply with a name": "name: !!python/object/apply:os.system ['touch MARKER']",
    "new": "name: !!python/object/new:os.system ['touch MARKER']",
    "a subprocess": "!!python/object/apply:subprocess.check_output [[touch, MARKER]]",
    "eval": "name: !!python/object/apply:eval [\"open('MARKER', 'w')\"]",
    "a name": "name: !!python/name:os.system",
    "a module": "name: !!python/module:antigravity",
    "an object": "name: !!python/object:tests.service.test_payloads.Touch {_marker: MARKER}",
    "a tuple of Python's": "name: !!python/tuple [1, 2]",
    "by the whole tag": "name: !<tag:yaml.org,2002:python/object/apply:os.system> ['touch MARKER']",
    "a tag of one's own": "%TAG !p! tag:yaml.org,2002:python/\n---\nname: !p!object/apply:os.system ['touch MARKER']",
    "as a key": "? !!python/object/apply:os.system ['touch MARKER']\n: 1",
    "as what is merged": "<<: !!python/object/apply:os.system ['touch MARKER']",
    "a local tag": "name: !Touch MARKER",
    "Ruby's": "name: !ruby/object:Gem::Installer {i: x}",
}
# Documents without code that expand to far more than their size suggests.
BOMBS: dict[str, str] = {
    "laughs": "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{n}: &{n} [{', '.join([f'*{before}'] * 10)}]\n"
        for before, n in zip("abcdefghi", "bcdefghij", strict=True)
    ),
    "merges": "a: &a {x: 1}\n"
    + "".join(
        f"{n}: &{n} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
        for before, n in zip("abcdefghi", "bcdefghij", strict=True)
    ),
    "a circle": "a: &a [*a]",
    "a circle of mappings": "&a {b: {c: *a}}",
    "a key twice": "budget: {usd: 1}\nname: a\nbudget: {usd: 1000}",
    "a key twice within": "budget: {usd: 1, usd: 1000}",
    "brackets": "a: " + "[" * 5000 + "]" * 5000,
    "braces": "{a: " * 5000 + "}" * 5000,
    "indents": "\n".join(" " * n + "a:" for n in range(1000)),
    "dashes": "- " * 5000 + "a",
    "a number of 5000 digits": "a: " + "1" * 5000,
    "no number": "a: .nan",
    "infinity": "a: -.inf",
    "a day that is none": "a: 2026-99-99",
    "binary": "a: !!binary aGVsbG8=",
    "a set": "a: !!set {b, c}",
    "a list as a key": "? [a, b]\n: 1",
    "an alias of nothing": "a: *nothing",
    "two documents": "a: 1\n---\nb: 2",
    "control characters": "a: \x01",
    "large": "a: " + "x" * (1 << 20),
}
MANIFESTS: dict[str, Callable[[Path], bytes]] = {
    "a pickle": lambda marker: pickle.dumps(Touch(marker)),
    "jsonpickle": lambda marker: json.dumps({"py/reduce": [{"py/type": "posix.system"}, f"touch {marker}"]}).encode(),
    "brackets": lambda marker: b"[" * 200_000,
    "a number of 5000 digits": lambda marker: b'{"version": ' + b"1" * 5000 + b"}",
    "no number": lambda marker: b'{"version": NaN, "job": "job_1", "trial": "t", "step": 3, "attempt": 1, "files": []}',
    "YAML": lambda marker: f"!!python/object/apply:os.system ['touch {marker}']".encode(),
}  # fmt: skip


@pytest.fixture
def marker(tmp_path: Path) -> Any:
    yield tmp_path / "marker"
    assert not (tmp_path / "marker").exists()


def test_payloads_run_in_readers_that_trust_them(tmp_path: Path) -> None:
    """Check that each payload does run in a reader that trusts it."""
    import torch

    for number, made in enumerate([pickle.dumps(Touch(tmp_path / "0")), by_hand(tmp_path / "1")]):
        pickle.loads(made)
        assert (tmp_path / str(number)).exists()
    torch.load(io.BytesIO(as_torch(Evaluate(tmp_path / "2"))), weights_only=False)
    yaml.unsafe_load(YAMLS["apply with a name"].replace("MARKER", str(tmp_path / "3")))
    np.load(io.BytesIO(objects(tmp_path / "4")), allow_pickle=True)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2", "3", "4"}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
@pytest.mark.parametrize("name", STATES)
def test_checkpoint_runs_no_code(tmp_path: Path, marker: Path, name: str) -> None:
    from tuner.training import plain

    (tmp_path / "state.pt").write_bytes(STATES[name](marker))
    with pytest.raises(tuple(REAL)):
        plain.read(tmp_path / "state.pt")


@pytest.mark.parametrize("name", TABLES)
def test_table_runs_no_code(tmp_path: Path, marker: Path, name: str) -> None:
    (tmp_path / "t.npz").write_bytes(TABLES[name](marker))
    with pytest.raises(TableError):
        load_table(tmp_path / "t.npz")


@pytest.mark.parametrize("name", YAMLS)
def test_yaml_runs_no_code(tmp_path: Path, marker: Path, name: str) -> None:
    text = YAMLS[name].replace("MARKER", str(marker))
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(BadParameter):
        read_job(tmp_path / "job.yaml")
    with pytest.raises(BadFile):
        read_node_types(text, "nodes.yaml")


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_bomb_or_ambiguous_yaml_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "job.yaml").write_text(BOMBS[name])
    with pytest.raises(BadParameter) as refused:
        read_job(tmp_path / "job.yaml")
    assert len(str(refused.value)) < 1000


def test_ordinary_aliases_and_merges_are_read() -> None:
    text = "a: &a {low: 0, high: 1}\nb: {<<: *a, high: 2}\nc: [*a, *a]\nd: &d {<<: *a, x: 1}\ne: {<<: [*d, *a], y: 1e-4}\n"
    loaded = yaml.load(text, JobYaml)  # noqa: S506  a SafeLoader
    a = {"low": 0, "high": 1}
    assert loaded == {
        "a": a,
        "b": {**a, "high": 2},
        "c": [a, a],
        "d": {**a, "x": 1},
        "e": {**a, "x": 1, "y": 1e-4},
    }


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_runs_no_code(tmp_path: Path, marker: Path, name: str) -> None:
    folder = tmp_path / "storage/default/job_1/t/step_00000003-a1"
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_bytes(MANIFESTS[name](marker))
    with pytest.raises(CheckpointDamaged):
        CheckpointStore(str(tmp_path / "storage"), "default", "job_1").fetch(
            "t", CheckpointId(3, 1), tmp_path
        )


# Backups


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    service = fakes.service_in(folder / "home")
    back_up(service, folder / "b")
    service.database.dispose()
    return folder / "b"


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def packed_again(file: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return file


ABOUTS: dict[str, Callable[[Path], bytes]] = {
    **MANIFESTS,
    "a list": lambda marker: b"[]",
    "a kind that is a list": lambda marker: json.dumps({**SAID, "kind": []}).encode(),
    "a size that is text": lambda marker: json.dumps({**SAID, "size_bytes": "9"}).encode(),
    "a time beyond time": lambda marker: json.dumps({**SAID, "taken_at": 10**30}).encode(),
    "a megabyte": lambda marker: json.dumps({**SAID, "tuner": "x" * 10**6}).encode(),
}
SAID = {**asdict(About("1", "0001", "sqlite", 1, 0, 1, "0")), "seal": ""}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ABOUTS)
def test_backup_description_runs_no_code(tmp_path: Path, whole: Path, marker: Path, name: str) -> None:
    file = packed_again(tmp_path / "b", {**members(whole), ABOUT: ABOUTS[name](marker)})
    with pytest.raises(BadFile):
        unpack(file, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_backup_that_unpacks_beyond_its_stated_size_is_cut_off(tmp_path: Path, whole: Path) -> None:
    unpack(whole, tmp_path / "copy")
    about = unpack(whole, tmp_path / "again")
    (tmp_path / "large").write_bytes(bytes(64 << 20))
    pack(tmp_path / "large", replace(about, size_bytes=1000), tmp_path / "b")
    assert (tmp_path / "b").stat().st_size < 1 << 20
    with pytest.raises(BadFile):
        unpack(tmp_path / "b", tmp_path / "into")
    assert (tmp_path / "into").stat().st_size <= 2 << 20


def test_backup_without_a_database_is_refused(
    service: FakeService, tmp_path: Path, whole: Path, marker: Path
) -> None:
    """The checksum is right, but the content is not a database."""
    about = unpack(whole, tmp_path / "copy")
    data = pickle.dumps(Touch(marker)) * 1000
    (tmp_path / "pickled").write_bytes(data)
    pack(
        tmp_path / "pickled",
        replace(about, size_bytes=len(data), sha256=digest(tmp_path / "pickled")),
        tmp_path / "b",
    )
    with pytest.raises(TunerError):
        put_back(service, tmp_path / "b")
