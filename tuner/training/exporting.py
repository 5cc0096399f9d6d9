"""Export a trained PyTorch module to files that run elsewhere, and measure the metric, size and latency of each file.

The Python file of a trainable defines `export(config, state) -> Exported` next to the function that trains. `state` maps the names that were
given to `SpotSafe` to the saved states. If the trainable saves its checkpoints in another way, `state` is the `Path` of the
checkpoint's directory.

Each format gives one file, called a variant. All formats but `torch` give ONNX files. They run with ONNX Runtime, which needs neither
PyTorch nor the code of the trainable.
"""

import copy
import importlib
import math
import shutil
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import prune

from tuner.training.checkpoint import random_states, set_random_states
from tuner.training.variants import BATCHES, BatchLatency, Format, Variant

# The largest difference that is accepted between the outputs of the ONNX file and of the module. It is relative to outputs above 1,
# because the rounding errors of single precision grow with the outputs.
TOLERANCE = 1e-4
PRUNED_SHARE = 0.25  # the share of the channels that `pruned` removes from each layer that allows it
ZEROED_SHARE = 0.5  # the share of the weights that `pruned-unstructured` sets to zero
MEASURED_S = 0.25  # how long each batch size is measured
FEWEST, MOST = 5, 300  # calls in one measurement
INT4_BLOCK = 32  # weights that share a scale
Predict = Callable[..., Any]

EXPORT_ADVICE = (
    "torch.export traces the module with one example, so the path through its code must not depend on the values of tensors: use "
    "torch.where instead of `if`, keep .item() and print out of forward, and write shapes as x.shape[...]"
)


@dataclass(frozen=True)
class Exported:
    """A trained module, with everything that is needed to export it and to measure the exported files."""

    module: nn.Module
    #: The inputs of one call. The first axis of each is the batch, and files accept batches of any size.
    example_inputs: tuple[torch.Tensor, ...]
    #: Returns the objective's metric of a variant. It is called with a function that has the inputs and outputs of the module.
    evaluate: Callable[[Predict], float]
    #: The inputs of several calls, typical of what the model will see. `int8-static` needs them.
    calibration: Sequence[tuple[torch.Tensor, ...]] | None = None


class ExportFailed(Exception):
    """A variant could not be exported. `code` names the reason and does not change between releases."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


def export_function(module: Any) -> Callable[[Mapping[str, Any], Any], Exported]:
    """Return the function `export` that the Python module of a trainable defines.

    Raises:
        ExportFailed: The Python module defines no such function (`no_export_function`).
    """
    function = getattr(module, "export", None)
    if not callable(function):
        raise ExportFailed(
            "no_export_function",
            f"{module.__name__} has no function export(config, state); define it next to the trainable, and return "
            "tuner.training.Exported(module, example_inputs, evaluate)",
        )
    return function  # type: ignore[no-any-return]


class Exporter:
    """Export a trained PyTorch module to one file for each format, and measure each file."""

    def __init__(
        self,
        exported: Exported,
        folder: Path,
        *,
        mode: Literal["max", "min"],
        max_drop: float | None = None,
        threads: int = 1,
    ) -> None:
        """Prepare the export: check `exported`, and compute the metric of its PyTorch module, with which each file is compared.

        Args:
            exported: The return value of the trainable's function `export`.
            folder: An existing directory. Each exported file is written to a new subdirectory that is named after its format.
            mode: Whether a larger metric is better (`max`), or a smaller one.
            max_drop: By how much the metric of a file may be worse than that of the module. A worse file is not delivered. None accepts any.
            threads: How many CPU threads PyTorch and ONNX Runtime use to compute the metrics and to measure the latency.

        Raises:
            ExportFailed: `exported` is not a valid `Exported` (`invalid_export`), or its `evaluate` failed (`evaluate_failed`).
        """
        self._exported, self._folder = _checked(exported), folder
        self._sign, self._max_drop, self._threads = (1 if mode == "max" else -1), max_drop, threads
        torch.set_num_threads(threads)
        self._module = exported.module.cpu().eval()
        # Trace with at least two examples, because a trace with one example would fix the batch size.
        self._example = rows(exported.example_inputs, max(2, len(exported.example_inputs[0])))
        self.metric = self._evaluate(self._module)

    def variant(self, format: Format) -> Variant:
        """Export the module to one format, and return the file with its measurements.

        An error is returned in the result and not raised, so that the files of other formats are still delivered.
        """
        began, folder = time.monotonic(), self._folder / format
        try:
            folder.mkdir()
            path = self._write(format, folder)
            variant = self._measure(format, path)
        except ExportFailed as failed:
            variant = Variant(format, code=failed.code, detail=failed.detail)
        except ImportError as error:
            variant = Variant(
                format,
                code="extra_missing",
                detail=f"{error}: install tuner[export] on the machines of the workers",
            )
        except Exception as error:  # the libraries raise errors of many classes
            variant = Variant(format, code="not_convertible", detail=_shown(error))
        if variant.file is None:
            shutil.rmtree(folder, ignore_errors=True)
        return replace(variant, seconds=time.monotonic() - began)

    def _write(self, format: Format, folder: Path) -> Path:
        """Write the module to a file of this format in `folder`, and return the path of the file."""
        path = folder / ("model.pt2" if format == "torch" else "model.onnx")
        match format:
            case "torch":
                with quiet():
                    torch.export.save(self._program, path)
            case "onnx":
                shutil.copyfile(self._onnx, path)
            case "int8-dynamic":
                _quantize_dynamic(self._prepared, path)
            case "int8-static":
                calibration = list(self._exported.calibration or ())
                if not calibration:
                    raise ExportFailed(
                        "no_calibration",
                        "int8-static needs typical inputs to find the ranges of activations: return "
                        "Exported(..., calibration=[(inputs,), ...]), or leave this format out",
                    )
                self._check_calibration(calibration)
                _quantize_static(self._prepared, path, calibration)
            case "int4-weight":
                _quantize_int4(self._prepared, path)
            case "pruned" | "pruned-unstructured":
                _write_onnx(_trace(self._pruned(format), self._example), path)
        return path

    def _check_calibration(self, calibration: Sequence[object]) -> None:
        wanted = [(example_input.shape[1:], example_input.dtype) for example_input in self._example]
        for number, inputs in enumerate(calibration):
            tensors = (
                [each for each in inputs if isinstance(each, torch.Tensor)]
                if isinstance(inputs, tuple)
                else []
            )
            if [(tensor.shape[1:], tensor.dtype) for tensor in tensors] != wanted:
                raise ExportFailed(
                    "invalid_calibration",
                    f"calibration[{number}] is {_shape_of(inputs)}, but must be a tuple of tensors with the types and shapes of "
                    f"example_inputs, {_shape_of(self._example)}; only the size of the first dimension may differ",
                )

    def _pruned(self, format: Format) -> nn.Module:
        """Return a copy of the module from which channels are removed (`pruned`), or in which many weights are zero (`pruned-unstructured`)."""
        copied = copy.deepcopy(self._module)
        if format == "pruned" and remove_channels(copied, PRUNED_SHARE) == 0:
            raise ExportFailed(
                "nothing_to_prune",
                "no channels can be removed: they are removed only if two Linear or Conv2d layers follow "
                "each other in one nn.Sequential, with only activations, pooling, dropout and normalisation between them",
            )
        if format == "pruned-unstructured" and zero_weights(copied, ZEROED_SHARE) == 0:
            raise ExportFailed(
                "nothing_to_prune",
                "the module has no Linear or convolution layer whose weights could be set to zero; leave this format out",
            )
        return copied

    @cached_property
    def _program(self) -> torch.export.ExportedProgram:
        return _trace(self._module, self._example)

    @cached_property
    def _onnx(self) -> Path:
        """The ONNX file of the unchanged module. The format `onnx` delivers a copy of it, and the quantized files are made from it."""
        path = self._folder / "onnx.tmp"
        _write_onnx(self._program, path)
        return path

    @cached_property
    def _prepared(self) -> Path:
        """The unquantized ONNX file with inferred shapes, which quantization needs."""
        from onnxruntime.quantization.shape_inference import quant_pre_process

        path = self._folder / "prepared.tmp"
        quant_pre_process(str(self._onnx), str(path), skip_symbolic_shape=True)
        return path

    def _measure(self, format: Format, path: Path) -> Variant:
        """Measure a written file. If its metric is too much worse than that of the module, return only the metric and the reason, and no file."""
        began = time.monotonic()
        loaded = _TorchFile(path) if format == "torch" else _OnnxFile(path, self._threads)
        load_ms = (time.monotonic() - began) * 1000
        difference, relative = self._differences(loaded)
        if format == "onnx" and not relative <= TOLERANCE:  # this form is also true if the difference is NaN
            raise ExportFailed(
                "outputs_differ",
                f"the outputs of the ONNX file differ from those of the module by up to {difference:.2g}; "
                f"the limit is {TOLERANCE:g}, or {TOLERANCE:g} of the output where the output is above 1: "
                "call module.eval() in export, and keep random numbers out of forward",
            )
        metric = self._evaluate(loaded.predict)
        drop = self._sign * (self.metric - metric)
        if self._max_drop is not None and not drop <= self._max_drop:
            detail = f"the metric drops by {drop:.6g}, from {self.metric:.6g} to {metric:.6g}, and at most {self._max_drop:g} is allowed"
            return Variant(
                format, metric=metric, drop=drop, difference=difference, code="metric_dropped", detail=detail
            )
        return Variant(
            format,
            file=str(path.relative_to(self._folder)),
            bytes=sum(file.stat().st_size for file in path.parent.iterdir()),
            metric=metric,
            drop=drop,
            difference=difference,
            sparsity=_sparsity(path) if format == "pruned-unstructured" else None,
            load_ms=load_ms,
            latency=tuple(
                _latency(loaded.caller(rows(self._example, batch)), batch, MEASURED_S) for batch in BATCHES
            ),
        )

    @cached_property
    def _outputs(self) -> list[torch.Tensor]:
        """The outputs of the module for the example inputs.

        Raises:
            ExportFailed: The outputs are not tensors (`invalid_export`).
        """
        with torch.inference_mode():
            outputs = self._module(*self._example)
        if not isinstance(outputs, torch.Tensor) and not (
            isinstance(outputs, tuple | list) and all(isinstance(each, torch.Tensor) for each in outputs)
        ):
            raise ExportFailed(
                "invalid_export",
                f"the module returns {_shape_of(outputs)}; export a module that returns a tensor or a tuple of tensors, such as a "
                "wrapper that calls your module and returns only its tensors",
            )
        return _flat(outputs)

    def _differences(self, loaded: "_TorchFile | _OnnxFile") -> tuple[float, float]:
        """Return the largest absolute difference between the outputs of a file and of the module, and the largest relative difference.

        The relative difference is divided by the absolute value of the module's output, or by 1 if that is larger.
        """
        with torch.inference_mode():
            got = _flat(loaded.predict(*self._example))
        absolute, relative = [], []
        for expected, other in zip(self._outputs, got, strict=True):
            # Equal infinities, as in masked logits, and NaN in both do not differ. `max` of a tensor is NaN if one value is.
            is_same = (expected == other) | (expected.isnan() & other.isnan())
            difference = (expected.double() - other.double()).abs()
            absolute.append(difference.masked_fill(is_same, 0.0).flatten())
            scaled = difference / expected.double().abs().clamp(min=1)
            relative.append(scaled.masked_fill(is_same, 0.0).flatten())
        return float(torch.cat(absolute).max()), float(torch.cat(relative).max())

    def _evaluate(self, predict: Predict) -> float:
        try:
            with torch.inference_mode():
                metric = float(self._exported.evaluate(predict))
        except Exception as error:
            raise ExportFailed(
                "evaluate_failed",
                f"evaluate(predict) raised an error with the exported model, whose predict takes and returns tensors in main memory: {_shown(error)}",
            ) from error
        if not math.isfinite(metric):
            raise ExportFailed(
                "evaluate_failed", f"evaluate(predict) returned {metric}; it must return a finite number"
            )
        return metric


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings in the block. PyTorch and ONNX warn about their own code, which users cannot change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def rows(inputs: Sequence[torch.Tensor], batch: int) -> tuple[torch.Tensor, ...]:
    """Return inputs with `batch` rows, by repeating the rows of these inputs."""
    return tuple(tensor[torch.arange(batch, device=tensor.device) % len(tensor)] for tensor in inputs)


def _checked(exported: object) -> Exported:
    if not isinstance(exported, Exported):
        raise ExportFailed(
            "invalid_export",
            f"export(config, state) returned a {type(exported).__name__}; return tuner.training.Exported(module, example_inputs, evaluate)",
        )
    inputs = exported.example_inputs
    tensors = isinstance(inputs, tuple) and all(
        isinstance(example_input, torch.Tensor) and example_input.ndim for example_input in inputs
    )
    if not tensors or len({len(example_input) for example_input in inputs}) != 1 or not len(inputs[0]):
        raise ExportFailed(
            "invalid_export",
            "example_inputs must be a tuple of tensors whose first axis is the batch, with the same number of rows in each",
        )
    return exported


def _trace(module: nn.Module, example: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    """Return the module as a graph that accepts batches of any size.

    Raises:
        ExportFailed: The module cannot be traced (`not_traceable`). The message names the line of code at which tracing failed.
    """
    batch = torch.export.Dim("batch")
    try:
        with quiet():
            return torch.export.export(
                module, example, dynamic_shapes=tuple({0: batch} for _ in example), strict=False
            )
    except Exception as error:  # torch.export has dozens of error classes
        raise ExportFailed(
            "not_traceable", f"{_line_of(error)}: {_first_line(error)}. {EXPORT_ADVICE}"
        ) from error


def _line_of(error: BaseException) -> str:
    """Return the last line outside of PyTorch that an error passed, as `file:line: code`."""
    home = str(Path(torch.__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if home not in frame.filename]
    own = [frame for frame in frames if frame.filename != __file__] or frames
    if not own:
        return "the module cannot be traced"
    return f"{own[-1].filename}:{own[-1].lineno}: {(own[-1].line or '').rstrip(':')}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:500].rstrip(".")


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


def _write_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    """Convert a program to ONNX and write it to a file.

    PyTorch's metadata is removed, because it names files of this machine and takes up a third of a small file.
    """
    import onnx

    _share_operators()
    with quiet():
        converted = torch.onnx.export(program, dynamo=True, verbose=False)
        assert converted is not None
        model = converted.model_proto
        graph = model.graph
        for noted in (
            model,
            graph,
            *graph.node,
            *graph.value_info,
            *graph.input,
            *graph.output,
            *graph.initializer,
        ):
            noted.ClearField("metadata_props")
        onnx.save(model, str(path))


@cache
def _share_operators() -> None:
    """Let all conversions of this process share PyTorch's table of ONNX operators.

    Otherwise PyTorch builds the table again for each conversion. That takes 1.4 s of the 2.4 s of processor time for a small module.
    """
    try:
        registry: Any = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
        registry.from_torchlib = staticmethod(cache(registry.from_torchlib))
    except (ImportError, AttributeError):
        return  # in another version of PyTorch, conversions work without this and only take longer


def _quantize_dynamic(source: Path, path: Path) -> None:
    """Store weights in 8 bits, and let the runtime quantize the activations of each call.

    The weights are unsigned, because ONNX Runtime has no convolution with signed 8-bit weights.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(source), str(path), weight_type=QuantType.QUInt8)


def _quantize_static(source: Path, path: Path, calibration: Sequence[tuple[torch.Tensor, ...]]) -> None:
    """Store weights in 8 bits, and quantize activations with ranges that are measured on the calibration inputs."""
    import onnxruntime
    from onnxruntime.quantization import QuantFormat, quantize_static

    opened = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    names = [model_input.name for model_input in opened.get_inputs()]
    feeds = iter(
        [
            {n: tensor.detach().cpu().numpy() for n, tensor in zip(names, each, strict=True)}
            for each in calibration
        ]
    )

    class Reader:  # the interface of CalibrationDataReader, whose base class only checks for this method
        def get_next(self) -> dict[str, Any] | None:
            return next(feeds, None)

    quantize_static(str(source), str(path), Reader(), quant_format=QuantFormat.QDQ, per_channel=True)


def _quantize_int4(source: Path, path: Path) -> None:
    """Store the weights of matrix products in 4 bits, with one scale for each block of weights."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.onnx_model import ONNXModel

    source_model = ONNXModel(onnx.load(str(source)))
    source_model.replace_gemm_with_matmul()  # a Linear layer is exported as a Gemm node, which the quantizer does not support
    quantizer = MatMulNBitsQuantizer(source_model.model, block_size=INT4_BLOCK, is_symmetric=True)
    quantizer.process()
    if all(node.op_type != "MatMulNBits" for node in quantizer.model.model.graph.node):
        raise ExportFailed(
            "nothing_to_quantize",
            "int4-weight changes only the weights of matrix products, such as Linear layers, and the module has none; use int8-dynamic",
        )
    quantizer.model.save_model_to_file(str(path))


class _TorchFile:
    """A module that was loaded from a `.pt2` file, PyTorch's own format for exported modules."""

    def __init__(self, path: Path) -> None:
        with quiet():
            self.predict: Predict = torch.export.load(path).module()

    def caller(self, inputs: tuple[torch.Tensor, ...]) -> Callable[[], object]:
        def call() -> object:
            with torch.inference_mode():
                return self.predict(*inputs)

        return call


class _OnnxFile:
    """A loaded ONNX file."""

    def __init__(self, path: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3  # errors only
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._names = [model_input.name for model_input in self._session.get_inputs()]

    def predict(self, *inputs: torch.Tensor) -> Any:
        outputs = [torch.from_numpy(array) for array in self._session.run(None, self._feed(inputs))]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def caller(self, inputs: tuple[torch.Tensor, ...]) -> Callable[[], object]:
        feed = self._feed(inputs)
        return lambda: self._session.run(None, feed)

    def _feed(self, inputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        return {n: tensor.detach().cpu().numpy() for n, tensor in zip(self._names, inputs, strict=True)}


def _latency(call: Callable[[], object], batch: int, seconds: float, most: int = MOST) -> BatchLatency:
    """Call repeatedly for about `seconds`, at most `most` times, and return the latency and the throughput.

    At least `FEWEST` calls are made. `batch` is the number of examples of one call.
    """
    for _ in range(2):  # the first calls allocate memory
        call()
    times: list[int] = []
    until = time.monotonic_ns() + round(seconds * 1e9)
    while len(times) < FEWEST or (time.monotonic_ns() < until and len(times) < most):
        began = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - began)
    ordered = sorted(times)
    p50, p99 = (ordered[min(len(ordered) - 1, len(ordered) * share // 100)] / 1e6 for share in (50, 99))
    return BatchLatency(batch, p50, p99, batch * len(times) * 1e9 / sum(times))


def exported_latency_ms(module: ModuleType, config: Mapping[str, Any], state: Any) -> float:
    """Return the time of one prediction on the CPU, in milliseconds, of the model that a trainable's `export` returns.

    The states of the random generators are restored, because training must not depend on whether the latency is measured.

    Raises:
        ExportFailed: The Python module defines no function `export`, or the function does not return a valid `Exported`.
    """
    states = random_states()
    try:
        exported = _checked(export_function(module)(config, state))
        return latency_ms(exported.module.cpu(), *(tensor.cpu() for tensor in exported.example_inputs))
    finally:
        set_random_states(states)


def latency_ms(module: nn.Module, *inputs: torch.Tensor, seconds: float = MEASURED_S) -> float:
    """Return the median time in milliseconds that the module takes for one prediction: a call with one row of the inputs.

    The module is called in evaluation mode and without gradients, with the threads and on the device that it trains with. The mode of
    each of its layers is restored. Measure once, before the loop: the time does not depend on the weights.

    Args:
        module: The module to measure.
        inputs: The inputs of one call. The first axis of each is the batch.
        seconds: How long to measure, in seconds. The time is billed like the rest of the trial.
    """
    example = rows(inputs, 1)
    devices = {tensor.device for tensor in example if tensor.device.type == "cuda"}

    def call() -> None:
        module(*example)
        for device in devices:
            torch.cuda.synchronize(device)  # calls on a GPU return before they are computed

    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        with torch.inference_mode():
            return _latency(call, 1, seconds, most=1_000_000).p50_ms
    finally:
        # Layers that do not train, such as frozen ones, may differ from the module.
        for layer, is_training in modes:
            layer.training = is_training


def _shape_of(value: object) -> str:
    """Describe tensors by their types and shapes, and anything else by its class."""
    match value:
        case torch.Tensor():
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        case tuple():
            return f"({', '.join(map(_shape_of, value))})"
        case None:
            return "None"
        case _:
            return f"a {type(value).__name__}"


def _flat(outputs: Any) -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


# Pruning


def zero_weights(module: nn.Module, share: float) -> int:
    """Set the smallest weights of all Linear and convolution layers to zero, and return in how many layers.

    Unstructured pruning by the global L1 norm, with `torch.nn.utils.prune`: `share` is the share of the weights of all these layers
    together that become zero. Biases are kept. The layers keep their shapes, so a runtime for dense matrices computes as much as before
    and takes as much time.
    """
    layers: dict[int, Any] = {}  # by weight, because layers may share one
    for layer in module.modules():
        weight = layer._parameters.get("weight")
        if isinstance(layer, nn.Linear | _ConvNd) and weight is not None:
            # torch joins the weights to one vector, and refuses `channels_last`
            weight.data = weight.data.contiguous()
            layers.setdefault(id(weight), layer)
    pairs = [(layer, "weight") for layer in layers.values()]
    if pairs:
        prune.global_unstructured(pairs, pruning_method=prune.L1Unstructured, amount=share)
    for layer, name in pairs:
        prune.remove(layer, name)  # type: ignore[no-untyped-call]
    return len(pairs)


def _sparsity(path: Path) -> float:
    """Return the share of the weights in an ONNX file that are zero. Biases and constants of one axis do not count."""
    import onnx
    from onnx import numpy_helper

    arrays = [numpy_helper.to_array(initializer) for initializer in onnx.load(str(path)).graph.initializer]
    weights = [array for array in arrays if array.ndim >= 2 and array.dtype.kind == "f"]
    return float(
        sum((weight == 0).sum() for weight in weights) / max(1, sum(weight.size for weight in weights))
    )


# Layers that compute each channel on its own, so that channels can be removed before and after them.
_BETWEEN = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.ELU, nn.Identity, nn.Dropout,
    nn.Dropout2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.Flatten,
)  # fmt: skip


def remove_channels(module: nn.Module, share: float) -> int:
    """Remove the channels with the smallest weights from layers of the module, and return how many channels were removed.

    Each of these layers loses a share of its channels, `share`, rounded down.

    Structured pruning by the L1 norm of filters (Li et al., 2017): the layers become smaller, so the model takes less memory and time
    on any runtime. It is applied to each pair of Linear or Conv2d layers that follow each other in one `nn.Sequential`, because
    nothing else can read the channels between them. The rest of the module is not changed.
    """
    removed = 0
    uses = [child for _, child in module.named_modules(remove_duplicate=False)]
    for block in [child for child in module.modules() if type(child) is nn.Sequential]:
        first: nn.Module | None = None
        between: list[nn.Module] = []
        for layer in block:
            shared = sum(layer is used_module for used_module in uses) > 1
            if _is_dense(layer) and not shared:
                if first is not None and _connect(first, between, layer):
                    removed += _shrink(first, between, layer, share)
                first, between = layer, []
            elif isinstance(layer, _BETWEEN) and not shared:
                between.append(layer)
            else:
                first, between = None, []
    return removed


def _is_dense(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear or (type(layer) is nn.Conv2d and layer.groups == 1)


def _connect(first: Any, between: Sequence[nn.Module], second: Any) -> bool:
    """Return whether a channel of the first layer can be removed together with the weights of the second layer that read it.

    This requires that each column of the second layer's weights reads only one channel, and that as many columns read each channel.
    """
    flat = [layer for layer in between if isinstance(layer, nn.Flatten)]
    if any((flatten.start_dim, flatten.end_dim) != (1, -1) for flatten in flat):
        return False
    flattens = bool(flat)
    if type(first) is nn.Linear:
        return type(second) is nn.Linear and not flattens and second.in_features == first.out_features
    if type(second) is nn.Conv2d:
        return not flattens and second.in_channels == first.out_channels
    return flattens and second.in_features % first.out_channels == 0


def _shrink(first: Any, between: Sequence[nn.Module], second: Any, share: float) -> int:
    channels = len(first.weight)
    fewer = int(channels * share)
    if fewer == 0 or channels - fewer < 1:
        return 0
    norms = first.weight.detach().abs().flatten(1).sum(1)
    kept = norms.argsort()[fewer:].sort().values
    _keep(first, "weight", kept)
    _keep(first, "bias", kept)
    wide = second.weight.shape[1] // channels  # columns of the second layer for each channel
    columns = (kept[:, None] * wide + torch.arange(wide)).flatten()
    features = kept
    for layer in between:
        if isinstance(layer, nn.Flatten):
            features = columns
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            for name in ("weight", "bias", "running_mean", "running_var"):
                _keep(layer, name, features)
            layer.num_features = len(features)
    second.weight = nn.Parameter(second.weight.detach()[:, columns].clone())
    if type(first) is nn.Linear:
        first.out_features = len(kept)
    else:
        first.out_channels = len(kept)
    if type(second) is nn.Linear:
        second.in_features = len(columns)
    else:
        second.in_channels = len(columns)
    return fewer


def _keep(layer: nn.Module, name: str, kept: torch.Tensor) -> None:
    """Reduce a parameter or buffer of the layer to the channels `kept`. Do nothing if the layer has none of this name."""
    value = getattr(layer, name, None)
    if value is None:
        return
    smaller = value.detach()[kept].clone()
    setattr(layer, name, nn.Parameter(smaller) if isinstance(value, nn.Parameter) else smaller)
