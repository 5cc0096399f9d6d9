"""Where user code runs: a supervisor in the actor, a warm fork server, one child process an attempt."""

import time

# The beginning of a worker: nothing of it is imported before this. From here on its time costs money.
BORN_NS = time.monotonic_ns()
