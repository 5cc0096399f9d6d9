"""Parse the answers of metadata services. Unreadable values raise MalformedNotice and no other exception."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from tuner.domain.time import NS, Instant, parse_rfc3339
from tuner.engine.notices.notice import MalformedNotice

SHOWN = 80
# Later times are errors, and not every database can store them.
YEAR_2200_NS = 7_258_118_400 * NS


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def succeeded(answer: Answer) -> None:
    if answer.status != 200:
        raise MalformedNotice(f"status {answer.status}")


def text_of(answer: Answer) -> str:
    """Return the body as text without surrounding white space."""
    try:
        return answer.body.decode().strip()
    except UnicodeDecodeError as error:
        raise MalformedNotice("the answer is no text") from error


def object_of(answer: Answer) -> Mapping[str, object]:
    """Return the body as a JSON object."""
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
    """Parse a time in RFC 3339 format, which AWS uses, or RFC 1123 format, which Azure uses."""
    for read in (parse_rfc3339, _rfc1123):
        # The exceptions of the mail date parser for invalid dates differ between Python versions.
        with suppress(ValueError, TypeError, IndexError, OverflowError):
            at = read(text)
            if 0 <= at < YEAR_2200_NS:
                return at
    raise MalformedNotice(f"{shown(text)} is no time")


def shown(value: object) -> str:
    """Return a short ASCII description of a value for error messages."""
    if value is None:
        return "nothing"
    return ascii(value[:SHOWN]) if isinstance(value, str) else f"{type(value).__name__}"


def _rfc1123(text: str) -> Instant:
    at = parsedate_to_datetime(text)
    if at.tzinfo is None:
        raise ValueError("a time without its zone")
    return Instant(int(at.timestamp()) * NS)
