"""Test how long an export may train if its checkpoint took long to download."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.worker import export as exporting
from tuner.worker.export import ExportResult, export


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
    result = export(
        project="default",
        job="job_1",
        export="export_00001",
        entry="module:train",
        package=None,
        storage="s3://bucket",
        trial="trial_00000",
        step=1,
        attempt=1,
        wanted={"formats": ["onnx"]},
        limit_s=60,
        resources={},
    )
    assert [order["lease_ns"] / 1e9 for order in orders] == ([] if lease_s is None else [lease_s])
    assert result.code == ("out_of_time" if lease_s is None else None)
