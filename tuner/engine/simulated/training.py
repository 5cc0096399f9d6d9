"""The port through which simulated workers train, and the overheads of their attempts."""

from dataclasses import dataclass
from typing import Literal, Protocol

from tuner.domain.space import Config


class Training(Protocol):
    """Return the duration and the metric of each step of a configuration. Implementations must be pure functions."""

    def step_ns(self, config: Config, step: int) -> int: ...

    def value(self, config: Config, step: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Overheads:
    """How long the parts of a simulated attempt other than training take, and how often it saves."""

    warming_ns: int = 0  #: Setup of the first attempt of each worker, in addition to `setup_ns`.
    setup_ns: int = 200_000_000
    resumed_setup_ns: int | None = None  #: Setup of an attempt that then restores. None means `setup_ns`.
    restore_ns: int = 100_000_000
    save_ns: int = 50_000_000  #: Time until a checkpoint is durable. An attempt waits for it at its end.
    stall_ns: int = 0  #: How long training is stalled by each save in the background.
    #: Time between saves in the background. "auto" means the rule of real workers, None means never.
    save_every_ns: int | Literal["auto"] | None = None
    resumable: bool = True

    def before_ns(self, *, resumed: bool) -> int:
        return self.resumed_setup_ns if resumed and self.resumed_setup_ns is not None else self.setup_ns
