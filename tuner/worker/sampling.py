"""A thread of the supervisor that samples its child once a second: processor time, memory and GPUs.

The child is also sampled when it reports, so that attempts shorter than a second are measured. This uses at most 1/200 of a processor.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from tuner.worker.attempt import RunningAttempt
from tuner.worker.metering import Gpus
from tuner.worker.process_tree import descendants, proportional_bytes, resource_use
from tuner.worker.processes import AttemptProcesses

SAMPLE_S = 1.0
LOOK_PART = 200  # measuring uses at most this part of a processor: 1/200


class UsageSampler:
    def __init__(
        self,
        changed: threading.Condition,
        processes: AttemptProcesses,
        attempt: Callable[[], RunningAttempt | None],
    ) -> None:
        """Sample `processes`. `changed` is the supervisor's lock and condition. `attempt` returns the current attempt, or None."""
        self._changed, self._processes, self._attempt = changed, processes, attempt
        self._gpus = Gpus()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Start the thread. Later calls do nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            with contextlib.suppress(Exception):  # a failed measurement must not end the training
                self._sample()

    def _sample(self) -> None:
        with self._changed:
            attempt = self._attempt()
            if attempt is None or attempt.state is not None:
                return
            sample_usage(attempt, self._processes.pids, self._processes.memory_sharers)
            has_gpu = attempt.watch.kind == "train" and attempt.order.get("resources", {}).get("GPU")
        # This runs without the lock, because a faulty GPU may answer late.
        sample = self._gpus.sample() if has_gpu else None
        if sample is not None:
            with self._changed:
                attempt.use.gpu(sample)


def sample_usage(attempt: RunningAttempt, pids: Sequence[int], sharers: Collection[int] = ()) -> None:
    """Measure the processes of an attempt that trains. Call it under the supervisor's lock.

    Do nothing if the last measurement was so recent that measuring again would use more than 1/`LOOK_PART` of a processor.

    Args:
        attempt: The attempt.
        pids: The processes of its ranks. Their descendants are measured, too.
        sharers: The processes whose memory these share and which therefore count as memory of the attempt.
    """
    meter, began_ns = attempt.use, time.thread_time_ns()
    is_early = time.monotonic_ns() - meter.looked_ns < LOOK_PART * meter.look_ns
    if not pids or attempt.watch.kind != "train" or is_early:
        return
    measured = [pid for first in pids for pid in (first, *descendants(first))]
    use = resource_use(measured)
    if len(measured) > 1 and use.memory_bytes > meter.memory_peak_bytes:
        use = replace(use, memory_bytes=proportional_bytes({*measured, *sharers}))
    if use.processes:
        meter.processes(use, trained_ns=attempt.watch.of("train"))
    meter.looked_ns = time.monotonic_ns()
    meter.look_ns = time.thread_time_ns() - began_ns
