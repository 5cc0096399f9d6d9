"""Run one job under Ray Tune: turn Tune's calls of its hooks into events of the job's loop, and the loop's commands into calls of Ray actors."""
