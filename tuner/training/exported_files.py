"""Write a traced PyTorch module to ONNX files, quantize them, and run the exported files.

The libraries of the extra `export` are imported only when they are needed.
"""

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

INT4_BLOCK = 32  # weights that share a scale
Predict = Callable[..., Any]


class ExportFailed(Exception):
    """A variant could not be exported. `code` names the reason and does not change between releases."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


def write_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
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


def quantize_dynamically(source: Path, path: Path) -> None:
    """Store weights in 8 bits, and let the runtime quantize the activations of each call.

    The weights are unsigned, because ONNX Runtime has no convolution with signed 8-bit weights.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(source), str(path), weight_type=QuantType.QUInt8)


def quantize_statically(source: Path, path: Path, calibration: Sequence[tuple[torch.Tensor, ...]]) -> None:
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


def quantize_to_int4(source: Path, path: Path) -> None:
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


class TorchFile:
    """A module that was loaded from a `.pt2` file, PyTorch's own format for exported modules."""

    def __init__(self, path: Path) -> None:
        with quiet():
            self.predict: Predict = torch.export.load(path).module()

    def caller(self, inputs: tuple[torch.Tensor, ...]) -> Callable[[], object]:
        def call() -> object:
            with torch.inference_mode():
                return self.predict(*inputs)

        return call


class OnnxFile:
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


def sparsity(path: Path) -> float:
    """Return the share of the weights in an ONNX file that are zero. Biases and constants of one axis do not count."""
    import onnx
    from onnx import numpy_helper

    arrays = [numpy_helper.to_array(initializer) for initializer in onnx.load(str(path)).graph.initializer]
    weights = [array for array in arrays if array.ndim >= 2 and array.dtype.kind == "f"]
    return float(
        sum((weight == 0).sum() for weight in weights) / max(1, sum(weight.size for weight in weights))
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings in the block. PyTorch and ONNX warn about their own code, which users cannot change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
