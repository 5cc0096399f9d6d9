"""The GPU benchmark without a GPU: it reports that, and its measurements run on the CPU at a small size."""

import pytest

from benchmarks import gpu


def test_benchmark_exits_with_an_error_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == gpu.NO_GPU
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("table", [name for name in gpu.TABLES if name not in ("worker", "share")])
def test_each_table_can_be_measured_on_the_cpu(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.TABLES[table]("cpu", gpu.SMALL)
    printed = capsys.readouterr().out
    assert printed
    if table == "restore":
        assert "twice differs by 0.0e+00, with a restore by 0.0e+00" in printed


def test_difference_of_two_runs_is_measured() -> None:
    assert gpu.apart([1.0, 2.0], [1.0, 2.5]) == 0.25
