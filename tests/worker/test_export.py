"""Test what an export does when its checkpoint takes long to download, and when the storage or the worker fails."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.driver.export_actors import variant
from tuner.checkpoints.checkpoints import CheckpointDamaged, CheckpointId
from tuner.worker import export as exporting
from tuner.worker.export import ExportOrder, ExportResult, export


def run_export() -> ExportResult:
    order = ExportOrder(
        project="default",
        job="job_1",
        export="export_00001",
        storage="s3://bucket",
        trial="trial_00000",
        checkpoint=CheckpointId(1, 1),
        entry="module:train",
        package=None,
        config={},
        formats=["onnx"],
        mode="max",
        max_drop=None,
        threads=1,
        limit_s=60,
        resources={},
    )
    return export(order)


@pytest.mark.parametrize(("download_s", "lease_s"), [(0, 60), (45, 15), (60, None)])
def test_download_shortens_the_lease_of_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, download_s: int, lease_s: int | None
) -> None:
    now, orders = [1000.0], list[dict[str, Any]]()

    def fetch(*_: object) -> Path:
        now[0] += download_s
        return tmp_path

    store = SimpleNamespace(fetch=fetch, files=lambda _: {})
    supervisor = SimpleNamespace(order=orders.append, close=lambda: None)
    monkeypatch.setattr(exporting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(exporting, "CheckpointStore", lambda *_: store)
    monkeypatch.setattr(exporting, "Supervisor", lambda *_, **__: supervisor)
    monkeypatch.setattr(exporting, "_follow", lambda *_: ExportResult(0.9, ()))
    result = run_export()
    assert [order["lease_ns"] / 1e9 for order in orders] == ([] if lease_s is None else [lease_s])
    assert result.code == ("out_of_time" if lease_s is None else None)


@pytest.mark.parametrize(
    ("failing", "error", "code", "text"),
    [
        ("fetch", CheckpointDamaged("state.pt is damaged"), "checkpoint_unreadable", "state.pt is damaged"),
        (
            "fetch",
            TimeoutError("no answer"),
            "storage_failed",
            "no answer (the storage does not answer: check",
        ),
        ("files", TimeoutError("no answer"), "not_stored", "failed after the export: TimeoutError"),
        ("order", RuntimeError("no process"), "worker_failed", "the worker failed: RuntimeError: no process"),
    ],
)
def test_each_cause_of_a_failed_export_has_its_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: Exception, code: str, text: str
) -> None:
    def call(name: str) -> Any:
        if name == failing:
            raise error
        return tmp_path

    store = SimpleNamespace(fetch=lambda *_: call("fetch"), files=lambda _: call("files"))
    closed: list[bool] = []
    supervisor = SimpleNamespace(order=lambda _: call("order"), close=lambda: closed.append(True))
    monkeypatch.setattr(exporting, "CheckpointStore", lambda *_: store)
    monkeypatch.setattr(exporting, "Supervisor", lambda *_, **__: supervisor)
    monkeypatch.setattr(exporting, "_follow", lambda *_: ExportResult(0.9, (variant("onnx"),)))
    result = run_export()
    failed = result.variants[0] if result.variants else result
    assert (failed.code, closed) == (code, [True])
    assert text in (failed.detail or "")
    assert failing != "files" or result.variants[0].latency, "the figures are kept"
