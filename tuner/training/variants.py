"""The files that an export makes, and the measurements of each. This needs the standard library only, because a worker's supervisor reads it."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Format = Literal[
    "torch", "onnx", "int8-dynamic", "int8-static", "int4-weight", "pruned", "pruned-unstructured"
]
FORMATS: tuple[Format, ...] = get_args(Format)
_FILE = re.compile(r"[a-z0-9-]+/[A-Za-z0-9._-]+")
BATCHES = (1, 8, 64)  # the batch sizes that latency is measured with
# Times and rates of a latency, and other times. With numbers outside, the costs of serving could not be computed as floats.
_LEAST, _MOST = 1e-6, 1e12
_MOST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class BatchLatency:
    """The measured latency and throughput of an exported model when each call predicts `batch` examples."""

    batch: int
    p50_ms: float
    p99_ms: float
    per_second: float  #: Predictions, not calls.


@dataclass(frozen=True, slots=True)
class Variant:
    """The file that an export made in one format, with its measurements.

    If the file could not be made or is not delivered, `file` is None, and `code` and `detail` give the reason. Otherwise they are None.
    """

    format: Format
    file: str | None = None  #: The path of the file, relative to the export's directory.
    bytes: int | None = None
    metric: float | None = None  #: The objective's metric of this variant.
    #: By how much the metric is worse than that of the module. Negative if it is better.
    drop: float | None = None
    #: The largest difference between the outputs of this variant and of the module.
    difference: float | None = None
    load_ms: float | None = None  #: The time to open the file in a process that has imported the runtime.
    latency: tuple[BatchLatency, ...] = ()
    seconds: float = 0.0  #: How long exporting and measuring took.
    code: str | None = None
    detail: str | None = None
    sparsity: float | None = None  #: The share of the weights that are zero. Only for `pruned-unstructured`.

    def plain(self) -> dict[str, Any]:
        """Return the variant as a dictionary of JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Any) -> "Variant":
        """Return the variant from which the method `Variant.plain` made the dictionary `plain`.

        Every value is checked, because the process that sends the dictionary also runs user code.

        Raises:
            ValueError: The dictionary is not a variant.
        """
        if not isinstance(plain, Mapping) or plain.get("format") not in FORMATS:
            raise ValueError(
                "the export's process returned something that does not describe an exported file"
            )
        known: dict[str, Any] = {field.name: plain.get(field.name) for field in fields(cls)}
        for name in ("file", "code", "detail"):
            if not isinstance(known[name], str | None):
                raise ValueError(f"`{name}` of an exported file is not text")
        if known["file"] is not None and not _FILE.fullmatch(known["file"]):
            raise ValueError(
                f"the path of an exported file must be one folder and a file name, not {known['file']!r:.120}"
            )
        for name in ("metric", "drop", "difference", "sparsity"):
            known[name] = None if known[name] is None else finite(name, known[name])
        for name in ("load_ms", "seconds"):
            known[name] = None if known[name] is None else _between(name, known[name], 0, _MOST)
        known["bytes"] = None if known["bytes"] is None else _whole("bytes", known["bytes"])
        known["latency"] = _latencies(known["latency"] or ())
        known["seconds"] = known["seconds"] or 0.0
        if known["file"] is not None and (None in (known["bytes"], known["metric"]) or not known["latency"]):
            raise ValueError("an exported file has no `bytes`, no `metric` or no `latency`")
        return cls(**known)


def _latencies(plain: Any) -> tuple[BatchLatency, ...]:
    """Return the latencies of all `BATCHES`, or none if `plain` is empty."""
    if not isinstance(plain, list | tuple) or not all(isinstance(each, Mapping) for each in plain):
        raise ValueError("`latency` of an exported file is not a list of objects")
    latencies = tuple(
        BatchLatency(
            _whole("batch", each.get("batch")),
            *(_between(name, each.get(name), _LEAST, _MOST) for name in ("p50_ms", "p99_ms", "per_second")),
        )
        for each in plain
    )
    if latencies and tuple(latency.batch for latency in latencies) != BATCHES:
        raise ValueError(f"`latency` of an exported file must have the batch sizes {BATCHES}")
    return latencies


def finite(name: str, value: object) -> float:
    """Return the value if it is a finite number. Otherwise raise ValueError, because variants cannot be compared by other values."""
    with suppress(OverflowError):  # an integer that is too large for a float
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise ValueError(f"`{name}` of an exported file is not a finite number")


def _between(name: str, value: object, least: float, most: float) -> float:
    number = finite(name, value)
    if not least <= number <= most:
        raise ValueError(f"`{name}` of an exported file is {number:g}, not between {least:g} and {most:g}")
    return number


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_BYTES:
        raise ValueError(f"`{name}` of an exported file is not a whole number from 0 to {_MOST_BYTES}")
    return value
