"""What a worker tells its driver, parsed once at the door."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tuner.domain.cost import Meter
from tuner.domain.time import Instant

WorkerState = Literal["running", "waiting", "paused", "finished", "stopped", "ended", "failed", "parked"]
ENDED: frozenset[WorkerState] = frozenset({"paused", "finished", "stopped", "ended", "failed"})
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
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


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
    def line(self) -> str:
        """One line that tells like failures apart from others."""
        first = self.message.strip().splitlines()[0] if self.message.strip() else ""
        return f"{self.type}: {first}"[:500] if self.type else first[:500]


@dataclass(frozen=True, slots=True)
class Progress:
    """One answer of a worker. `saved_step` is that of the newest durable checkpoint, `need_ns` the lease wanted beyond the
    present one; `warming_ns` of the attempt's setup went into the worker itself, and is not needed for another attempt."""

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

    @classmethod
    def parse(cls, result: Mapping[str, Any]) -> "Progress":
        error = result.get("error")
        return cls(
            trial=result["trial"],
            attempt=result["attempt"],
            state=result["state"],
            meter=Meter.of(result["meter"]),
            reports=tuple(
                StepReport(r["step"], r["metrics"], r["resumable"], Meter.of(r["meter"]), Instant(r["at_ns"]))
                for r in result["reports"]
            ),
            checkpoints=tuple(
                Saved(c["step"], c["uri"], c["bytes"], c["seconds"]) for c in result["checkpoints"]
            ),
            need_ns=result.get("need_ns") or 0,
            saved_step=result.get("saved_step"),
            warming_ns=result.get("warming_ns", 0),
            trouble=Trouble(error["kind"], error["type"], error["message"], error.get("traceback", ""))
            if error
            else None,
        )
