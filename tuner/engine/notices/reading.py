"""What the clouds' answers have in common. Everything here raises MalformedNotice, and nothing else, for what cannot be read."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from tuner.domain.time import NS, Instant, parse_rfc3339
from tuner.engine.notices.notice import MalformedNotice

SHOWN = 80
# Later is no time that anybody meant, and more than every database takes.
YEAR_2200_NS = 7_258_118_400 * NS


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it came. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def succeeded(answer: Answer) -> None:
    if answer.status != 200:
        raise MalformedNotice(f"status {answer.status}")


def text_of(answer: Answer) -> str:
    """Without the white space around it."""
    try:
        return answer.body.decode().strip()
    except UnicodeDecodeError as error:
        raise MalformedNotice("the answer is no text") from error


def object_of(answer: Answer) -> Mapping[str, object]:
    """The JSON object that the answer is."""
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise MalformedNotice(f"{shown(answer.body.decode(errors='replace'))} is no JSON") from error
    if not isinstance(found, dict):
        raise MalformedNotice(f"{shown(found)} is no JSON object")
    return found


def string(found: Mapping[str, object], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise MalformedNotice(f"{name} is {shown(value)} instead of text")
    return value


def moment(text: str) -> Instant:
    """As RFC 3339 writes it, which AWS does, or RFC 1123, which Azure does."""
    for read in (parse_rfc3339, _rfc1123):
        # What the parser of mail dates raises for what is none has changed with Python's versions.
        with suppress(ValueError, TypeError, IndexError, OverflowError):
            at = read(text)
            if 0 <= at < YEAR_2200_NS:
                return at
    raise MalformedNotice(f"{shown(text)} is no time")


def shown(value: object) -> str:
    """What was found, short, and nothing that a log cannot take."""
    if value is None:
        return "nothing"
    return ascii(value[:SHOWN]) if isinstance(value, str) else f"{type(value).__name__}"


def _rfc1123(text: str) -> Instant:
    at = parsedate_to_datetime(text)
    if at.tzinfo is None:
        raise ValueError("a time without its zone")
    return Instant(int(at.timestamp()) * NS)
