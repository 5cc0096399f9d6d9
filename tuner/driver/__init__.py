"""Run one job under Ray Tune: turn Tune's hooks into events of the loop, and the loop's commands into calls of Ray actors."""
