"""The same loop on a simulated clock: a journal in memory, workers that train by table, faults from a seed."""
