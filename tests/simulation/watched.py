"""Run simulations with every invariant checked after each transaction and turn."""

from tuner.simulator.invariants import Invariants
from tuner.simulator.journal import Committed
from tuner.simulator.world import SimulatedRun


def watched(run: SimulatedRun) -> Invariants:
    """Check the run from the next transaction on, after applying what was recorded before."""
    invariants = Invariants()
    tables = run.journal.tables
    invariants.recorded(tables, Committed([], list(tables.entries.values()), list(tables.attempts.values())))
    run.journal.watchers.append(invariants.recorded)
    run.on_turn = lambda: invariants.after_turn(run)
    return invariants


def run_watched(run: SimulatedRun) -> SimulatedRun:
    invariants = watched(run)
    run.run()
    invariants.at_end(run)
    return run
