"""Models of the output of trials."""

from tuner.schemas.base import Answer


class TrialLog(Answer):
    """The output of an attempt, as text without terminal control sequences.

    `attempts` lists the attempts that have a log. `at` is the time up to which this log is current. Of the `bytes_total` bytes that
    were printed, `bytes_left_out` are not in `text`. Pass `bytes_until` as `after` to continue from here. If `complete` is true, no
    more output will follow. If `ended` is true but `complete` is not, the worker was lost, and with it the output of its last seconds.
    """

    job: str
    trial: str
    attempt: int
    attempts: list[int]
    at: str
    complete: bool
    ended: bool
    bytes_total: int
    bytes_left_out: int
    bytes_until: int
    text: str
