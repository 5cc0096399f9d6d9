"""Run one job under Ray Tune.

Ray Tune calls hooks of this package, which turn the calls into events of the job's loop. The loop's commands become calls of Ray actors.
"""
