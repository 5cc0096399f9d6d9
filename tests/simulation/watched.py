"""Run simulations with every invariant checked after each transaction and turn."""

from tuner.driver.messages import WorkerMessage
from tuner.simulator.invariants import watch
from tuner.simulator.world import SimulatedRun


def run_watched(run: SimulatedRun, *, turns_max: int = 1_000_000) -> SimulatedRun:
    invariants = watch(run)
    run.run(turns_max=turns_max)
    invariants.at_end(run)
    return run


def run_metered(run: SimulatedRun) -> dict[tuple[str, int], int]:
    """Run to the end, and return the time of each attempt in nanoseconds, by its last message to the driver."""
    metered: dict[tuple[str, int], int] = {}
    progress = run.loop.progress

    def listen(message: WorkerMessage) -> None:
        metered[message.trial, message.attempt] = message.meter.total_ns
        progress(message)

    run.loop.progress = listen  # type: ignore[method-assign,assignment]
    run.run()
    return metered
