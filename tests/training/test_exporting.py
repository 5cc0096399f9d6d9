"""Exporting a trained module to files: every format, what is measured of it, and each error."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from trainables import digits_cnn
from tuner.training import Exported, exporting, latency_ms, quantize_aware
from tuner.training.exported_files import ExportFailed
from tuner.training.exporting import Exporter
from tuner.training.pruning import remove_channels, zero_weights
from tuner.training.variants import FORMATS

ALONE = """
import sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
images = numpy.load(sys.argv[2])
numpy.save(sys.argv[3], session.run(None, {session.get_inputs()[0].name: images})[0])
assert not {"torch", "tuner", "trainables", "onnx"} & sys.modules.keys()
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure latency only as long as needed."""
    monkeypatch.setattr(exporting, "MEASURED_S", 0.0)


def trained(**config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a configuration of digits_cnn, and a state as after a few steps of training."""
    torch.manual_seed(0)
    x_train, _, y_train, _ = digits_cnn.data()
    model = digits_cnn.build(config.get("width", 16), config.get("depth", 2), 0.0)
    if config.get("quantize_aware"):
        quantize_aware(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for rows in torch.arange(len(x_train)).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x_train[rows]), y_train[rows]).backward()
        optimizer.step()
    return config, {"model": model.state_dict()}


def exporter(exported: Exported, folder: Path, **options: Any) -> Exporter:
    return Exporter(exported, folder, **{"mode": "max", **options})


def linear(forward: Any = None, **more: Any) -> Exported:
    """Return a small module to export. Its forward can be replaced."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x) if forward is None else forward(self.layer(x))

    torch.manual_seed(1)
    module, x = Small(), torch.rand(4, 4)
    given = {"evaluate": lambda predict: float(predict(x).sum()), **more}
    return Exported(module, (x,), **given)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "formats",
    [("onnx", "int8-dynamic"), pytest.param(FORMATS, marks=pytest.mark.extended, id="all")],
)
def test_formats_of_a_network_are_written_measured_and_close(tmp_path: Path, formats: Sequence[str]) -> None:
    config, state = trained()
    exported = digits_cnn.export(config, state)
    export = exporter(exported, tmp_path)
    assert export.metric > 0.7
    made = {format: export.variant(format) for format in formats}
    for format, variant in made.items():
        assert (variant.code, variant.detail) == (None, None), format
        assert variant.file
        assert (tmp_path / variant.file).stat().st_size == variant.bytes
        assert variant.metric == pytest.approx(export.metric - (variant.drop or 0))
        assert [latency.batch for latency in variant.latency] == [1, 8, 64]
        assert all(
            0 < latency.p50_ms <= latency.p99_ms and latency.per_second > 0 for latency in variant.latency
        )
    assert (made["onnx"].difference or 0) <= 1e-4
    sizes = {format: variant.bytes or 0 for format, variant in made.items()}
    assert sizes["int8-dynamic"] * 2 <= sizes["onnx"]
    if "torch" in made:
        assert (made["torch"].difference or 0) <= 1e-4
        assert sizes["pruned"] < sizes["onnx"]
        assert made["pruned-unstructured"].sparsity == pytest.approx(0.5, abs=0.02)
        assert sizes["pruned-unstructured"] == pytest.approx(sizes["onnx"], rel=0.02)

    images = torch.rand(5, 1, 8, 8)
    given, got = tmp_path / "images.npy", tmp_path / "logits.npy"
    numpy.save(given, images.numpy())
    command = [sys.executable, "-c", ALONE, str(tmp_path / "onnx/model.onnx"), str(given), str(got)]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    with torch.inference_mode():
        wanted = exported.module(images).numpy()
    assert abs(numpy.load(got) - wanted).max() <= 1e-4


@pytest.mark.extended
@pytest.mark.usefixtures("quick")
def test_quantization_aware_training_loses_no_more_in_int8(tmp_path: Path) -> None:
    drops, weights = [], []
    for aware in (False, True):
        config, state = trained(width=4, quantize_aware=aware)
        weights.append(state["model"])
        (tmp_path / str(aware)).mkdir()
        export = exporter(digits_cnn.export(config, state), tmp_path / str(aware))
        variant = export.variant("int8-static")
        assert variant.drop is not None, variant.detail
        drops.append(variant.drop)
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0]), (
        "nothing was rounded"
    )
    assert drops[1] <= drops[0] + 1 / 450  # one of the validation images


@pytest.mark.usefixtures("quick")
def test_a_variant_without_what_it_needs_does_not_prevent_the_others(tmp_path: Path) -> None:
    export = exporter(linear(), tmp_path)
    made = {format: export.variant(format) for format in ("int8-static", "pruned", "torch")}
    assert {format: variant.code for format, variant in made.items()} == {
        "int8-static": "no_calibration",
        "pruned": "nothing_to_prune",
        "torch": None,
    }
    assert "calibration=[" in (made["int8-static"].detail or "")
    assert not (tmp_path / "pruned").exists()


@pytest.mark.usefixtures("quick")
def test_a_variant_whose_metric_drops_too_far_is_not_delivered(tmp_path: Path) -> None:
    scores = iter([0.9, 0.8])  # of the module, then of the variant
    export = exporter(linear(evaluate=lambda predict: next(scores)), tmp_path, max_drop=0.05)
    dropped = export.variant("torch")
    assert (dropped.code, dropped.file, dropped.metric) == ("metric_dropped", None, 0.8)
    assert "at most 0.05 is allowed" in (dropped.detail or "")
    assert not (tmp_path / "torch").exists()
    scores = iter([0.1, 0.2])
    lower = exporter(linear(evaluate=lambda predict: next(scores)), tmp_path, mode="min", max_drop=0.05)
    assert lower.variant("torch").code == "metric_dropped"


def test_a_module_that_cannot_be_traced_is_named_with_its_line(tmp_path: Path) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    variant = exporter(linear(forward), tmp_path).variant("torch")
    assert variant.code == "not_traceable"
    assert f"{__file__}:" in (variant.detail or "")
    assert "return x if x.sum() > 0 else -x" in (variant.detail or "")
    assert "torch.where" in (variant.detail or "")


@pytest.mark.parametrize(
    ("exported", "code", "text"),
    [
        (object(), "invalid_export", "returned a object"),
        (Exported(nn.Linear(1, 1), (), lambda predict: 0.0), "invalid_export", "tuple of tensors"),
        (linear(evaluate=lambda predict: predict(torch.rand(1, 3))), "evaluate_failed", "shapes"),
        (linear(evaluate=lambda predict: float("nan")), "evaluate_failed", "returned nan"),
    ],
)
def test_an_unusable_export_is_refused(exported: Any, code: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match=text) as refused:
        exporter(exported, tmp_path)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("forward", "returned"),
    [(lambda x: {"logits": x}, "a dict"), (lambda x: (x, None), r"\(float32\[.*\], None\)")],
)
def test_a_module_whose_outputs_are_not_tensors_is_refused(
    forward: Any, returned: str, tmp_path: Path
) -> None:
    variant = exporter(linear(forward, evaluate=lambda predict: 0.0), tmp_path).variant("torch")
    assert variant.code == "invalid_export"
    assert re.match(f"the module returns {returned}; export a module that", variant.detail or "")


@pytest.mark.parametrize(
    ("calibration", "code"),
    [
        ([(torch.rand(3, 4, requires_grad=True),)], None),
        (iter([(torch.rand(3, 4),)]), None),
        (iter([]), "no_calibration"),
        ([torch.rand(3, 4)], "invalid_calibration"),
        ([(torch.rand(3, 4),), (torch.rand(3, 5),)], "invalid_calibration"),
        ([(torch.ones(3, 4, dtype=torch.int64),)], "invalid_calibration"),
        ([(torch.rand(3, 4), torch.rand(3, 4))], "invalid_calibration"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_unusable_calibration_fails_only_its_variant(
    calibration: Any, code: str | None, tmp_path: Path
) -> None:
    exported = Exported(nn.Linear(4, 2), (torch.rand(2, 4),), lambda predict: 1.0, calibration=calibration)
    made = exporter(exported, tmp_path)
    assert made.variant("int8-static").code == code
    assert made.variant("onnx").code is None


def test_a_module_without_export_is_named() -> None:
    with pytest.raises(ExportFailed, match="mine has no function export") as refused:
        exporting.export_function(ModuleType("mine"))
    assert refused.value.code == "no_export_function"


@pytest.mark.parametrize(
    ("expected", "got", "close"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, float("nan")], False),
        ([1.0, float("nan")], [1.0, 2.0], False),
        ([1.0, float("nan")], [1.0, float("nan")], True),
        ([1.0, -float("inf")], [1.0, -float("inf")], True),
        ([1.0, -float("inf")], [1.0, 0.0], False),
        ([1e4, 0.5], [1e4 + 0.01, 0.5], True),
        ([1e4, 0.5], [1e4 + 2.0, 0.5], False),
        ([1e4, 0.5], [1e4, 0.501], False),
    ],
)
def test_outputs_are_close_if_each_differs_little_for_its_size(
    expected: list[float], got: list[float], close: bool
) -> None:
    """NaN on one side is a difference, although `max` of Python skips NaN unless it comes first."""

    class File:
        def predict(self) -> tuple[torch.Tensor, ...]:
            return tuple(map(torch.tensor, got))

    made = Exporter.__new__(Exporter)
    made._example, made._outputs = (), list(map(torch.tensor, expected))
    absolute, relative = made._differences(File())  # type: ignore[arg-type]
    assert (relative <= exporting.TOLERANCE) is close
    assert not absolute < relative


@pytest.mark.usefixtures("quick")
def test_large_outputs_may_differ_by_rounding_errors(tmp_path: Path) -> None:
    class Rounded:
        """The ONNX file of a module whose outputs are near 30,000, on a machine that adds in another order."""

        def __init__(self, path: Path, threads: int) -> None: ...

        def predict(self, x: torch.Tensor) -> torch.Tensor:
            return exported.module(x) + 0.01

        def caller(self, inputs: tuple[torch.Tensor, ...]) -> Any:
            return lambda: self.predict(*inputs)

    exported = linear(lambda x: x + 30_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "OnnxFile", Rounded)
        patch.setattr(exporting, "write_onnx", lambda program, path: path.touch())
        variant = exporter(exported, tmp_path).variant("onnx")
    assert (variant.code, variant.difference) == (None, pytest.approx(0.01, rel=0.3))


def test_outputs_that_change_from_call_to_call_are_refused(tmp_path: Path) -> None:
    changing = exporter(linear(lambda x: x + torch.rand_like(x)), tmp_path).variant("onnx")
    assert changing.code == "outputs_differ"


# Channels are removed where only zeros are lost, so that the output must stay the same.
NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1)
    ),
    "flattened": lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 3)),
    "flattened and normalised": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.BatchNorm1d(8 * 4), nn.Linear(8 * 4, 3)
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_removing_channels_that_are_zero_changes_no_output(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]().eval()
    with torch.no_grad():
        network[0].weight[[1, 5]] = 0
        network[0].bias[[1, 5]] = 0
        for layer in network:
            if isinstance(layer, nn.BatchNorm1d):
                layer.running_var.uniform_(1, 2)
    x = torch.rand(2, 4) if name == "linear" else torch.rand(2, 4, 4, 4)
    before, weights = network(x), sum(parameter.numel() for parameter in network.parameters())
    assert remove_channels(network, 0.25) == 2
    assert torch.allclose(network(x), before, atol=1e-6)
    assert sum(parameter.numel() for parameter in network.parameters()) < weights


def test_channels_that_something_else_may_read_are_kept() -> None:
    shared = nn.Linear(4, 4)
    networks = [
        nn.Sequential(shared, nn.ReLU(), shared),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)),
        nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 1)),
        nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]),
    ]
    assert [remove_channels(network, 0.5) for network in networks] == [0, 0, 0, 0]


def test_the_smallest_weights_of_all_layers_together_become_zero() -> None:
    network = nn.Sequential(nn.Conv1d(1, 4, 2), nn.Flatten(), nn.Linear(8, 2), nn.Linear(2, 8))
    network[3].weight = nn.Parameter(network[2].weight.detach().T.clone())
    with torch.no_grad():
        network[0].weight.mul_(100)
    bias = network[0].bias.detach().clone()
    assert zero_weights(network, 0.5) == 3
    zeros = [float((network[i].weight == 0).float().mean()) for i in (0, 2, 3)]
    assert zeros == pytest.approx([0.0, 0.625, 0.625])  # 20 of 40, all in the layers with small weights
    assert torch.equal(network[0].bias, bias)
    assert {"0.weight", "2.weight", "3.weight"} <= network.state_dict().keys()


def test_a_weight_that_layers_share_is_pruned_once() -> None:
    words, head = nn.Embedding(4, 4), nn.Linear(4, 4)
    head.weight = words.weight
    network = nn.Sequential(words, head, nn.Sequential(head))
    assert zero_weights(network, 0.5) == 1
    assert head.weight is words.weight
    assert int((words.weight == 0).sum()) == 8
    assert zero_weights(nn.Sequential(nn.LayerNorm(2)), 0.5) == 0


def test_latency_is_measured_with_one_row_in_evaluation_mode() -> None:
    class Slow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((len(x), self.training, torch.is_inference_mode_enabled()))
            time.sleep(0.002)
            return super().forward(x)

    seen: list[tuple[int, bool, bool]] = []
    module = nn.Sequential(nn.BatchNorm1d(4), Slow(4, 2)).train()
    module[0].eval()  # a frozen layer
    assert latency_ms(module, torch.zeros(8, 4), seconds=0) >= 2
    assert set(seen) == {(1, False, True)}
    assert [layer.training for layer in module.modules()] == [True, False, True]
