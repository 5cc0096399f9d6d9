"""The times at which a job must stop: when its wall-clock limit is reached, and when its time window closes."""

from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.calendar import Window
from tuner.domain.time import Instant
from tuner.driver.ports import Clock

Over = ev.WallClockEnded | ev.WindowClosed


class Deadlines:
    """The wall-clock limit and the time window of one job. `ran_ns` is how long the job had run before this object was created."""

    def __init__(self, clock: Clock, ran_ns: int, window: Window | None) -> None:
        self._clock, self._born_ns, self._window = clock, clock.elapsed_ns() - ran_ns, window
        self._ends_ns: int | None = None

    def limit(self, budget: Budget) -> None:
        limit = budget.wall_clock_ns
        self._ends_ns = None if limit is None else self._born_ns + limit

    def wall_clock_ns(self) -> int | None:
        """Return the time until the job's wall-clock limit in nanoseconds, or None if it has no such limit."""
        return None if self._ends_ns is None else self._ends_ns - self._clock.elapsed_ns()

    def left_ns(self) -> int | None:
        """Return the nanoseconds until the wall-clock limit or the window's end, the earlier of the two. Return None if the job has neither."""
        left = [ns for ns in (self.wall_clock_ns(), self._window_ns()) if ns is not None]
        return min(left, default=None)

    def over(self, at: Instant) -> Over | None:
        """Return `WallClockEnded` if the wall-clock limit has passed, `WindowClosed` if the window has closed, otherwise None."""
        wall_clock_ns = self.wall_clock_ns()
        if wall_clock_ns is not None and wall_clock_ns <= 0:
            return ev.WallClockEnded(at)
        return ev.WindowClosed(at) if self._window_ns() == 0 else None

    def binding_limit(self, limit: ev.Limit) -> ev.Limit:
        """Return the name of the limit that refused a hold, for the event about the refusal.

        The result is `limit`, except that "wall_clock" becomes "window" if the job's time window closes before the wall-clock limit.
        """
        window_ns, wall_clock_ns = self._window_ns(), self.wall_clock_ns()
        sooner = window_ns is not None and (wall_clock_ns is None or window_ns < wall_clock_ns)
        return "window" if limit == "wall_clock" and sooner else limit

    def next_opening(self, at: Instant) -> Instant | None:
        """Return the next time at which the window opens, or None if the job has no window.

        If the window is open now, return when it opens again after it has closed, because little time may be left until it closes.
        """
        return None if self._window is None else self._window.opening(self._window.closing(at))

    def _window_ns(self) -> int | None:
        return None if self._window is None else self._window.left_ns(self._clock.now())
