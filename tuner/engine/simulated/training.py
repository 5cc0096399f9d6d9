"""What simulated workers train, and the time around it."""

from dataclasses import dataclass
from typing import Literal, Protocol

from tuner.domain.space import Config


class Training(Protocol):
    """What would be trained: time and result of each step, by configuration. Pure."""

    def step_ns(self, config: Config, step: int) -> int: ...

    def value(self, config: Config, step: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Overheads:
    """`warming_ns`: what the first attempt of each worker takes beyond `setup_ns`; `resumed_setup_ns`: the setup of an attempt
    that then restores (None: as any). A checkpoint is durable after `save_ns`, for which the one at an attempt's end is waited
    for. There are others in the background, when `save_every_ns` have passed since the last ("auto": by the rule of real workers;
    None: never); training waits `stall_ns` for each."""

    warming_ns: int = 0
    setup_ns: int = 200_000_000
    resumed_setup_ns: int | None = None
    restore_ns: int = 100_000_000
    save_ns: int = 50_000_000
    stall_ns: int = 0
    save_every_ns: int | Literal["auto"] | None = None
    resumable: bool = True

    def before_ns(self, *, resumed: bool) -> int:
        return self.resumed_setup_ns if resumed and self.resumed_setup_ns is not None else self.setup_ns
