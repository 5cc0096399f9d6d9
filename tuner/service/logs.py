"""Return the output of trials as text that is safe to show: without terminal controls, and with secrets masked."""

import re
from dataclasses import dataclass, replace

from tuner.checkpoints.attempt_logs import Printed, TrialLogs
from tuner.checkpoints.storage import explained
from tuner.domain.errors import Invalid, NotFound, Unavailable
from tuner.domain.records import AttemptRow
from tuner.domain.time import Instant
from tuner.service.answers import trial_of
from tuner.service.bootstrap import Service
from tuner.store import attempt_rows, jobs

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
# Visible replacements for control characters (C0 and C1) except tab and newline. Characters that change the direction of text
# are replaced, too, because they can disguise the text.
_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys(
        (*range(0x80, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD
    ),
}
UTF8_BYTES = 4


def readable(data: bytes) -> str:
    """Decode printed bytes to text, with each line as a terminal would finally show it.

    Colours and cursor movements are removed. Of a line that was overwritten, the last version is returned. Other control
    characters are replaced by visible symbols.

    >>> readable(b"".join([bytes([27]), b"[31mred ", bytes([13]), b"10%", bytes([7])]))
    '10%␇'
    """
    text = _ESCAPES.sub("", data.decode(errors="replace"))
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return text.translate(_PICTURES)


def masked(data: bytes, secrets: list[str]) -> bytes:
    """Replace each secret in the bytes with asterisks. The number of bytes does not change."""
    for secret in secrets:
        data = data.replace(secret.encode(), b"*" * len(secret.encode()))
    return data


def whole_end(data: bytes) -> int:
    """Return the length of the bytes without an incomplete UTF-8 character at the end.

    An incomplete character is not shown yet, because its other bytes may still be written.
    """
    for back in range(1, min(UTF8_BYTES, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:  # begins a character of more than one byte
            wants = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if wants > back else len(data)
        if byte < 0x80:
            break
    return len(data)


def whole_begin(data: bytes) -> bytes:
    """Return the bytes without an incomplete UTF-8 character at the beginning, whose first byte was cut off."""
    begin = 0
    while begin < min(UTF8_BYTES - 1, len(data)) and 0x80 <= data[begin] < 0xC0:
        begin += 1
    return data[begin:]


SECRET_MIN = 6  # Secrets with fewer characters are not masked, because they occur inside ordinary words.


@dataclass(frozen=True, slots=True)
class LogView:
    """A part of what one attempt of a trial printed."""

    job: str
    trial: str
    attempt: int
    attempts: list[int]  #: The trial's attempts that have a log.
    at: Instant  #: When the log was last stored.
    complete: bool  #: Whether everything that the attempt printed, up to its end, was stored.
    #: Whether the attempt has ended. If it has ended and the log is not complete, its last output may be lost.
    ended: bool
    total: int  #: Number of bytes that the attempt has printed so far.
    left_out: int  #: Number of bytes between the requested `after` and `until` that are not in `text`.
    until: int  #: Position in bytes at which `text` ends. To read on, pass it as `after`.
    text: str


def log(
    service: Service, job: str, trial: str, attempt: int | None, *, tail: int, after: int = 0, node: int = 0
) -> LogView:
    """Return the last part of the output that an attempt of a trial printed on one node.

    Args:
        attempt: Number of the attempt. None means the newest attempt that has a log.
        tail: Return at most this many bytes, from the end of the output.
        after: Skip this many bytes at the beginning of the output.
        node: Number of the attempt's node, counted from 0.

    Raises:
        NotFound: The job, the trial or the attempt does not exist, or the attempt printed nothing.
        Invalid: The trials of the job run on fewer nodes.
        Unavailable: The storage does not answer.
    """
    begun, nodes = _attempts(service, job, trial)
    logs = TrialLogs(service.settings.storage, service.project, job, trial)
    try:
        kept = logs.attempts(node)
        chosen = attempt if attempt is not None else max(kept, default=max(begun))
        if chosen not in begun:
            raise NotFound(f"{trial} has no attempt {chosen}, only {_numbers(begun)}")
        printed = logs.read(chosen, node) if chosen in kept else None
    except (NotFound, Unavailable):
        raise
    except Exception as error:  # every storage backend raises its own error types
        raise Unavailable(f"the log cannot be read: {explained(error)}") from error
    ended = begun[chosen].ended_at is not None
    if printed is None:
        if node >= nodes:
            raise Invalid.at(
                "node", f"must be less than {nodes}, the number of nodes that a trial of this job has"
            )
        others = f"; logs exist for {_numbers(kept)}" if kept else ""
        where = f" on node {node}" if node else ""
        raise NotFound(
            f"attempt {chosen} of {trial} has printed nothing{where}{'' if ended else ' so far'}{others}"
        )
    return _view(service, job, trial, (chosen, kept, ended), printed, after=after, tail=tail)


def _attempts(service: Service, job: str, trial: str) -> tuple[dict[int, AttemptRow], int]:
    """Return the attempts of a trial by number, and the number of nodes that each attempt runs on.

    Raise NotFound if the trial has no attempt.
    """
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        trial_of(db, row, trial)
        begun = {attempt.attempt: attempt for attempt, _ in attempt_rows.of_trials(db, job, [trial])}
    if not begun:
        raise NotFound(f"{trial} has not begun, so it has printed nothing")
    return begun, row.spec.resources.nodes


def _view(
    service: Service,
    job: str,
    trial: str,
    which: tuple[int, list[int], bool],
    printed: Printed,
    *,
    after: int,
    tail: int,
) -> LogView:
    attempt, kept, ended = which
    secrets = [secret for secret in _secrets(service) if len(secret) >= SECRET_MIN]
    hidden = _hidden(printed, secrets)
    earlier, gap, later = hidden.since(after, tail)
    end = len(later) if printed.complete else whole_end(later)
    shown = len(earlier) + end
    text = readable(whole_begin(later[:end]))
    if gap:
        text = f"{readable(whole_begin(earlier))}\n[... {gap} bytes left out ...]\n{text}"
    until = printed.total - (len(later) - end)
    return LogView(
        job,
        trial,
        attempt,
        kept,
        Instant(printed.at_ns),
        printed.complete,
        ended,
        printed.total,
        max(0, until - after - shown),
        until,
        text,
    )


def _hidden(printed: Printed, secrets: list[str]) -> Printed:
    """Return the log with secrets masked.

    The log is stored as head and tail. If no bytes are missing between the two, they are masked together, because a secret
    may begin in the head and end in the tail.
    """
    cut = len(printed.head)
    if cut + len(printed.tail) == printed.total:
        whole = masked(printed.head + printed.tail, secrets)
        return replace(printed, head=whole[:cut], tail=whole[cut:])
    return replace(printed, head=masked(printed.head, secrets), tail=masked(printed.tail, secrets))


def _secrets(service: Service) -> list[str]:
    """Return the service's own secrets: its key and the passwords of its database.

    Workers do not receive them, but user code may have found and printed them.
    """
    return [service.settings.api_key(), *service.database.passwords]


def _numbers(attempts: dict[int, AttemptRow] | list[int]) -> str:
    return ", ".join(f"attempt {number}" for number in sorted(attempts))
