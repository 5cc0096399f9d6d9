"""The answer with the output of a trial."""

from tuner.domain.time import rfc3339
from tuner.schemas.logs import TrialLog
from tuner.service.logs import LogView


def log_of(view: LogView) -> TrialLog:
    return TrialLog(
        job=view.job,
        trial=view.trial,
        attempt=view.attempt,
        attempts=view.attempts,
        at=rfc3339(view.at),
        complete=view.complete,
        ended=view.ended,
        bytes_total=view.total,
        bytes_left_out=view.left_out,
        bytes_until=view.until,
        text=view.text,
    )
