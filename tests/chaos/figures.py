"""What a run came to, out of its history: faults, and how long it took until all was well again. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from tests.chaos.history import Line

# The client tries again for so long.
CLIENT_TRIES_S = 3.0
# What a customer is told within this after a loss was reported before it.
UNDER_WAY_S = 2.0
# After these, trials train again once a report has come of an attempt that began afterwards.
LOSSES = ("kill head", "kill gcs", "kill driver")


def faults(lines: Iterable[Line]) -> Counter[str]:
    """By name, those that found a victim."""
    return Counter(line.told["fault"] for line in lines if line.what == "strike" and line.told["victim"])


def recoveries(lines: Sequence[Line], attempts: dict[tuple[str, str, int], int]) -> list[float]:
    """Seconds from each loss of a head or driver to the first report that came of an attempt which nobody had heard of before. `attempts`
    tells which attempt reported a step of a trial of a job. A loss that is followed by another one before that is counted from
    the last: the first had no chance to be mended. One of a job that trains no more is left out."""
    found: list[float] = []
    heard: set[tuple[str, str, int]] = set()
    lost: dict[str, float] = {}
    running: set[str] = set()
    for line in lines:
        job = line.told.get("job", "")
        if line.what == "report":
            attempt = attempts.get((job, line.told["trial"], line.told["step"]), 0)
            is_new = (job, line.told["trial"], attempt) not in heard
            if is_new and job in lost and line.at - lost[job] > UNDER_WAY_S:
                found.append(line.at - lost.pop(job))
            heard.add((job, line.told["trial"], attempt))
            running.add(job)
        elif line.what == "state" and line.told["state"] not in ("queued", "running"):
            running.discard(job)
            lost.pop(job, None)
        elif line.what == "strike" and line.told["fault"] in LOSSES and line.told["victim"]:
            for one in running if line.told["fault"] != "kill driver" else running & {line.told["of_job"]}:
                lost[one] = line.at
    return found


def percentile(seconds: Sequence[float], share: float) -> float | None:
    """The smallest that at least this share does not exceed; None of none."""
    ordered = sorted(seconds)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else None


def told(seconds: Sequence[float]) -> str:
    if not seconds:
        return "not seen"
    return (
        f"median {median(seconds):.1f} s, 95 % {percentile(seconds, 0.95):.1f} s, "
        f"longest {max(seconds):.1f} s of {len(seconds)}"
    )


def unmended(lines: Sequence[Line]) -> int:
    """Requests which the client's own tries did not mend, from each kill -9 of PostgreSQL to a while after it answers, where nothing else
    was down or harmed meanwhile."""
    away = [
        (line.at - line.told["seconds"], line.at + CLIENT_TRIES_S)
        for line in lines
        if line.what == "ready" and line.told["part"] == "database" and _is_of_a_kill(line)
    ]
    failed = [line.at for line in lines if line.what == "failed"]
    return sum(any(begins <= at <= ends for begins, ends in away) for at in failed)


def _is_of_a_kill(line: Line) -> bool:
    return bool(line.told["killed"] and line.told["alone"])


def back(lines: Iterable[Line], part: str) -> list[float]:
    """Seconds from each kill -9 of this part to its being ready, where nothing else was down or harmed meanwhile."""
    found = [line for line in lines if line.what == "ready" and line.told["part"] == part]
    return [line.told["seconds"] for line in found if _is_of_a_kill(line)]
