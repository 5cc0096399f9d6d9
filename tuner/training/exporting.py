"""Export a trained PyTorch module to files that run elsewhere, and measure the metric, size and latency of each file.

The Python file of a trainable defines `export(config, state) -> Exported` next to the function that trains. `state` maps the names that were
given to `SpotSafe` to the saved states. If the trainable saves its checkpoints in another way, `state` is the `Path` of the
checkpoint's directory.

Each format gives one file, called a variant. All formats but `torch` give ONNX files. They run with ONNX Runtime, which needs neither
PyTorch nor the code of the trainable.
"""

import copy
import math
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import nn

from tuner.training.checkpoint import random_states, set_random_states
from tuner.training.exported_files import (
    ExportFailed,
    OnnxFile,
    Predict,
    TorchFile,
    quantize_dynamically,
    quantize_statically,
    quantize_to_int4,
    quiet,
    sparsity,
    write_onnx,
)
from tuner.training.latency import MEASURED_S, latency_ms, measure_calls, rows
from tuner.training.pruning import remove_channels, zero_weights
from tuner.training.variants import BATCHES, Format, Variant

# The largest difference that is accepted between the outputs of the ONNX file and of the module. It is relative to outputs above 1,
# because the rounding errors of single precision grow with the outputs.
TOLERANCE = 1e-4
PRUNED_SHARE = 0.25  # the share of the channels that `pruned` removes from each layer that allows it
ZEROED_SHARE = 0.5  # the share of the weights that `pruned-unstructured` sets to zero

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
                quantize_dynamically(self._prepared, path)
            case "int8-static":
                calibration = list(self._exported.calibration or ())
                if not calibration:
                    raise ExportFailed(
                        "no_calibration",
                        "int8-static needs typical inputs to find the ranges of activations: return "
                        "Exported(..., calibration=[(inputs,), ...]), or leave this format out",
                    )
                self._check_calibration(calibration)
                quantize_statically(self._prepared, path, calibration)
            case "int4-weight":
                quantize_to_int4(self._prepared, path)
            case "pruned" | "pruned-unstructured":
                write_onnx(_trace(self._pruned(format), self._example), path)
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
        write_onnx(self._program, path)
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
        loaded = TorchFile(path) if format == "torch" else OnnxFile(path, self._threads)
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
            sparsity=sparsity(path) if format == "pruned-unstructured" else None,
            load_ms=load_ms,
            latency=tuple(
                measure_calls(loaded.caller(rows(self._example, batch)), batch, MEASURED_S)
                for batch in BATCHES
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

    def _differences(self, loaded: TorchFile | OnnxFile) -> tuple[float, float]:
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
