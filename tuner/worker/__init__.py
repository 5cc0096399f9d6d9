"""The worker, which runs user code: a supervisor in the Ray actor, a warm fork server, and one child process per attempt."""

import time

# When the worker began to cost money, on the monotonic clock. Set here because no other module of the worker is imported earlier.
STARTED_NS = time.monotonic_ns()
