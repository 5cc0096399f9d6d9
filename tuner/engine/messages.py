"""What a worker tells its driver, parsed once at the door."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from tuner.domain.cost import Meter
from tuner.domain.environment import Environment
from tuner.domain.time import Instant
from tuner.domain.usage import Usage

T = TypeVar("T")
WorkerState = Literal["running", "waiting", "paused", "finished", "stopped", "ended", "failed", "preempted"]
ENDED: frozenset[WorkerState] = frozenset({"paused", "finished", "stopped", "ended", "failed", "preempted"})
NAMES_KEPT, NAME_CHARS = 30, 60  # of metrics that were reported instead of the objective
TROUBLE = ("kind", "type", "message", "traceback")
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, slots=True)
class StepReport:
    """`meter` is the attempt's reading at this report."""

    step: int
    metrics: Mapping[str, object]
    resumable: bool
    meter: Meter
    at: Instant

    def value(self, metric: str) -> float | None:
        """The metric as a number; None where it is missing or is no number."""
        found = self.metrics.get(metric)
        if isinstance(found, str):
            return _SPECIAL.get(found)
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None
        try:
            return float(found)
        except OverflowError:  # an integer beyond what a float holds
            return math.inf if found > 0 else -math.inf

    def names(self) -> tuple[str, ...]:
        """Return the names of the first metrics, cut to a length that fits an error message."""
        return tuple(name[:NAME_CHARS] for name in sorted(self.metrics)[:NAMES_KEPT])


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that became durable."""

    step: int
    uri: str
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an attempt ended otherwise than by order."""

    kind: str
    type: str
    message: str
    traceback: str = ""

    @property
    def no_fault(self) -> bool:
        """Whether it lies in storage or the worker, not in the trial."""
        return self.kind == "storage"

    @property
    def line(self) -> str:
        """One line that tells like failures apart from others."""
        first = self.message.strip().splitlines()[0] if self.message.strip() else ""
        return f"{self.type}: {first}"[:500] if self.type else first[:500]


@dataclass(frozen=True, slots=True)
class Progress:
    """One answer of a worker. `saved_step` is that of the newest durable checkpoint, `need_ns` the lease wanted beyond the
    present one; `warming_ns` of the attempt's setup went into the worker itself, and is not needed for another attempt.
    `from_step` is that of the checkpoint from which it went on (0: none; None: not yet known), `node` where it runs ("": unknown); `leaving`: that is about to be taken away. Of its restore and its closing save, `outage_ns` went into trying again a storage that failed. `machine`: what its
    cloud says of the machine; empty: nothing yet."""

    trial: str
    attempt: int
    state: WorkerState
    meter: Meter
    reports: tuple[StepReport, ...] = ()
    checkpoints: tuple[Saved, ...] = ()
    need_ns: int = 0
    saved_step: int | None = None
    trouble: Trouble | None = None
    warming_ns: int = 0
    node: str = ""
    leaving: bool = False
    from_step: int | None = None
    outage_ns: int = 0
    machine: Mapping[str, str] = field(default_factory=dict)
    usage: Usage | None = None
    environment: Environment | None = None  #: That of the attempt, in one of its answers.

    @classmethod
    def parse(cls, result: Mapping[str, Any]) -> "Progress":
        error = result.get("error")
        return cls(
            trial=result["trial"],
            attempt=result["attempt"],
            state=result["state"],
            meter=Meter.of(result["meter"]),
            reports=tuple(
                StepReport(
                    r["step"],
                    {_text(name): _text(value) for name, value in r["metrics"].items()},
                    r["resumable"],
                    Meter.of(r["meter"]),
                    Instant(r["at_ns"]),
                )
                for r in result["reports"]
            ),
            checkpoints=tuple(
                Saved(c["step"], c["uri"], c["bytes"], c["seconds"]) for c in result["checkpoints"]
            ),
            need_ns=result.get("need_ns") or 0,
            saved_step=result.get("saved_step"),
            warming_ns=result.get("warming_ns", 0),
            node=result.get("node", ""),
            leaving=result.get("leaving", False),
            from_step=result.get("from_step"),
            outage_ns=result.get("outage_ns", 0),
            machine=result.get("machine") or {},
            usage=Usage.parse(result.get("usage")),
            environment=Environment.parse(result.get("environment")),
            trouble=Trouble(**{name: _text(error.get(name, "")) for name in TROUBLE}) if error else None,
        )


def _text(value: T) -> T:
    """What user code said, as a database takes it: without lone surrogates (of file names that are no UTF-8) and NULs."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode().replace("\0", "")  # type: ignore[return-value]
