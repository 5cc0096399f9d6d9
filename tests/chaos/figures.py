"""Compute figures of a run from its history: the number of faults, and the time to recover from them. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from tests.chaos.history import Line

# The client retries for this long.
CLIENT_TRIES_S = 3.0
# A report that arrives within this time after a loss was already under way before it.
UNDER_WAY_S = 2.0
# After these faults, trials train again once a report arrives from an attempt that began afterwards.
LOSSES = ("kill head", "kill gcs", "kill driver")


def faults(lines: Iterable[Line]) -> Counter[str]:
    """Count the faults that found a victim, by name."""
    return Counter(line.facts["fault"] for line in lines if line.what == "strike" and line.facts["victim"])


def recoveries(lines: Sequence[Line], attempts: dict[tuple[str, str, int], int]) -> list[float]:
    """Return the seconds from each loss of a head or driver to the first report of an attempt not seen before.

    `attempts` maps (job, trial, step) to the attempt that reported the step. If another loss follows before
    recovery, the time is counted from the last loss. Losses of jobs that no longer train are not counted.
    """
    recovery_times: list[float] = []
    reported: set[tuple[str, str, int]] = set()
    lost: dict[str, float] = {}
    running: set[str] = set()
    for line in lines:
        job = line.facts.get("job", "")
        if line.what == "report":
            attempt = attempts.get((job, line.facts["trial"], line.facts["step"]), 0)
            is_new = (job, line.facts["trial"], attempt) not in reported
            if is_new and job in lost and line.at - lost[job] > UNDER_WAY_S:
                recovery_times.append(line.at - lost.pop(job))
            reported.add((job, line.facts["trial"], attempt))
            running.add(job)
        elif line.what == "state" and line.facts["state"] not in ("queued", "running"):
            running.discard(job)
            lost.pop(job, None)
        elif line.what == "strike" and line.facts["fault"] in LOSSES and line.facts["victim"]:
            for struck_job in (
                running if line.facts["fault"] != "kill driver" else running & {line.facts["of_job"]}
            ):
                lost[struck_job] = line.at
    return recovery_times


def summary_of(seconds: Sequence[float]) -> str:
    if not seconds:
        return "not seen"
    return (
        f"median {np.median(seconds):.1f} s, 95 % {np.quantile(seconds, 0.95, method='inverted_cdf'):.1f} s, "
        f"longest {max(seconds):.1f} s of {len(seconds)}"
    )


def unmended(lines: Sequence[Line]) -> int:
    """Count requests that failed despite the client's retries.

    A request counts if it failed between a kill -9 of PostgreSQL and CLIENT_TRIES_S after PostgreSQL answers
    again, and nothing else was down or harmed in that time.
    """
    away = [
        (line.at - line.facts["seconds"], line.at + CLIENT_TRIES_S)
        for line in lines
        if line.what == "ready" and line.facts["part"] == "database" and _is_of_a_kill(line)
    ]
    failed = [line.at for line in lines if line.what == "failed"]
    return sum(any(begins <= at <= ends for begins, ends in away) for at in failed)


def _is_of_a_kill(line: Line) -> bool:
    return bool(line.facts["killed"] and line.facts["alone"])


def back(lines: Iterable[Line], part: str) -> list[float]:
    """Return the seconds from each kill -9 of `part` until it is ready, if nothing else was down or harmed in
    that time.
    """
    ready_lines = [line for line in lines if line.what == "ready" and line.facts["part"] == part]
    return [line.facts["seconds"] for line in ready_lines if _is_of_a_kill(line)]
