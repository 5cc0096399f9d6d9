"""Simulation of jobs.

The driver's real loop runs on a simulated clock. The journal is in memory, the workers are simulated, and faults are
drawn from a seed.
"""
