"""Requests to the simulator."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tuner.domain.errors import Fault
from tuner.domain.job import Market, SamplerName, SchedulerName
from tuner.domain.time import NS

MAX_TRAININGS = 1_000_000
MAX_WORKERS = 10_000
HOUR_NS = 3600 * NS
SCHEDULERS: tuple[SchedulerName, ...] = get_args(SchedulerName)
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
MARKETS: tuple[Market, ...] = get_args(Market)
RATES = ("crash_rate", "loss_rate", "repeat_rate", "restart_rate", "clock_jump_rate")
# Fields that are only valid with spot machines, with the names that users see.
OF_SPOT = {
    "trace_id": "trace_id",
    "market": "market",
    "notice_ns": "notice",
    "spot_saving": "spot_saving",
    "spot_wait_ns": "spot_wait",
    "save_ns": "save_time",
    "every_ns": "checkpoint_interval",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request to simulate a job over recorded learning curves.

    The `*_rate` fields are probabilities per message of a worker, which sends about one per step. Fields about spot
    machines are valid only with `preemptions`, and None means their default.
    """

    table: Path
    budget_trainings: float  #: The budget in mean trainings.
    workers: int = 4
    seed: int = 0
    scheduler: str = "auto"
    sampler: str = "auto"
    startup_steps: float = 1
    preemptions: Path | None = None  #: A CSV of spot availability, or the name of a shipped one.
    trace_id: str | None = None
    noticeless: bool = False  #: Whether machines are preempted without notice.
    crash_rate: float = 0
    loss_rate: float = 0
    repeat_rate: float = 0
    restart_rate: float = 0
    clock_jump_rate: float = 0
    trace: Path | None = None  #: File to which every event and ledger entry is written.
    trials: int | None = None  #: Limit on the number of trials, as in a job's budget.
    wall_clock_ns: int | None = None  #: Limit on the running time, as in a job's budget.
    training_ns: int | None = None  #: Time of a mean training; None means the time in the table.
    market: str | None = None
    notice_ns: int | None = None  #: Time from the notice to the preemption.
    spot_saving: float | None = None  #: Fraction of the on-demand price by which spot is cheaper.
    spot_wait_ns: int | None = None
    save_ns: int | None = None
    every_ns: int | Literal["auto"] | None = None
    beside: bool = False  #: Whether the same job is also simulated under other conditions.

    def faults(self) -> list[Fault]:
        """Return what is wrong with the values of the request, without reading its table or trace."""
        bounds = {**self._bounds(), **self._spot_bounds()}
        for name in RATES:
            bounds[f"/{name}"] = (0 <= getattr(self, name) <= 0.5, "must be between 0 and 0.5")
        found = [Fault(pointer, fix) for pointer, (holds, fix) in bounds.items() if not holds]
        if self.preemptions is None:
            given = [word for name, word in OF_SPOT.items() if getattr(self, name) is not None]
            given += [word for word in ("noticeless", "beside") if getattr(self, word)]
            found += [Fault(f"/{word}", "is of spot machines: give preemptions, too") for word in given]
        return found

    def _bounds(self) -> dict[str, tuple[bool, str]]:
        return {
            "/workers": (1 <= self.workers <= MAX_WORKERS, f"must be between 1 and {MAX_WORKERS}"),
            "/seed": (-(2**63) <= self.seed < 2**63, "must fit into 64 bits"),
            "/startup_steps": (0 <= self.startup_steps <= 1000, "must be between 0 and 1000"),
            "/budget_trainings": (
                0 < self.budget_trainings <= MAX_TRAININGS,
                f"must be more than 0, and at most {MAX_TRAININGS}",
            ),
            "/scheduler": (self.scheduler in SCHEDULERS, f"must be one of {', '.join(SCHEDULERS)}"),
            "/sampler": (self.sampler in SAMPLERS, f"must be one of {', '.join(SAMPLERS)}"),
            "/trials": (_within(self.trials, 1, 1_000_000), "must be between 1 and 1000000"),
            "/wall_clock": (_within(self.wall_clock_ns, 1), "must be more than 0 seconds"),
            "/training_time": (
                _within(self.training_ns, NS, 10_000 * HOUR_NS),
                "must be between 1 second and 10000 hours",
            ),
        }

    def _spot_bounds(self) -> dict[str, tuple[bool, str]]:
        every_ns = None if self.every_ns == "auto" else self.every_ns
        return {
            "/market": (self.market in (None, *MARKETS), f"must be one of {', '.join(MARKETS)}"),
            "/notice": (
                not (self.noticeless and self.notice_ns) and _within(self.notice_ns, 0, HOUR_NS),
                "must be at most an hour, and is left out with noticeless",
            ),
            "/spot_saving": (_within(self.spot_saving, 0, 0.99), "must be between 0 and 0.99"),
            "/spot_wait": (_within(self.spot_wait_ns, NS, HOUR_NS), "must be between 1 second and an hour"),
            "/save_time": (_within(self.save_ns, 0, HOUR_NS), "must be at most an hour"),
            "/checkpoint_interval": (_within(every_ns, 1), "must be more than 0 seconds, or auto"),
        }


def _within(value: float | None, least: float, most: float = float("inf")) -> bool:
    return value is None or least <= value <= most
