"""Simulation of jobs.

The real loop runs on a simulated clock, with a journal in memory, workers that look up recorded curves, and
faults drawn from a seed.
"""
