"""Run simulations with every invariant checked after each transaction and turn."""

from tuner.simulator.invariants import watch
from tuner.simulator.world import SimulatedRun


def run_watched(run: SimulatedRun, *, turns_max: int = 1_000_000) -> SimulatedRun:
    invariants = watch(run)
    run.run(turns_max=turns_max)
    invariants.at_end(run)
    return run
