"""What is shown of what trials print."""

from tuner.schemas.base import Answer


class TrialLog(Answer):
    """What an attempt printed, as text that steers no terminal. `attempts`: those that have a log; `at`: up to when this is. Of
    `bytes_total` that were printed `bytes_left_out` are not in `text`; with `after` set to `bytes_until` one goes on from here.
    `complete`: nothing more will come. `ended` without `complete`: its worker was lost, with what it printed in its last seconds."""

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
