"""The notice of a coming event for a machine, such as a preemption, and parsers for the answers of metadata services.

Unreadable values raise MalformedNotice and no other exception.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from tuner.domain.time import NS, Instant, parse_rfc3339

# A deadline that moves by less than this was only rounded differently.
SOONER_NS = NS


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning that all processes of this machine will end, because the machine is taken away or is stopped for maintenance."""

    id: str  #: The id stays the same while the notice is current, so that a repeated notice is recognised.
    deadline: Instant  #: When the event happens, by this machine's clock. Clouds may act earlier.
    text: str  #: A description for people.


class MalformedNotice(ValueError):
    """An answer from which it cannot be read whether there is a notice."""


def changes(passed_on: Mapping[str, Notice], current: Iterable[Notice]) -> tuple[list[Notice], list[Notice]]:
    """Return the notices to pass on and the notices that were withdrawn.

    A notice that was passed on before is passed on again only if its deadline is now earlier.

    Args:
        passed_on: The notices that were passed on, by id.
        current: The current notices.
    """
    current_by_id = {notice.id: notice for notice in current}
    new = [
        notice
        for notice in current_by_id.values()
        if notice.id not in passed_on or notice.deadline < passed_on[notice.id].deadline - SOONER_NS
    ]
    return new, [notice for notice in passed_on.values() if notice.id not in current_by_id]


SHOWN = 80
# Later times are errors, and not every database can store them.
YEAR_2200_NS = 7_258_118_400 * NS


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """An HTTP answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def succeeded(answer: MetadataAnswer) -> None:
    if answer.status != 200:
        raise MalformedNotice(f"the metadata service answered with the HTTP status {answer.status}")


def text_of(answer: MetadataAnswer) -> str:
    """Return the body as text without surrounding white space."""
    try:
        return answer.body.decode().strip()
    except UnicodeDecodeError as error:
        raise MalformedNotice("the answer is not text") from error


def object_of(answer: MetadataAnswer) -> Mapping[str, object]:
    """Return the body as a JSON object."""
    try:
        parsed_body = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise MalformedNotice(f"{shown(answer.body.decode(errors='replace'))} is not JSON") from error
    if not isinstance(parsed_body, dict):
        raise MalformedNotice(f"{shown(parsed_body)} is not a JSON object")
    return parsed_body


def string(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
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
    raise MalformedNotice(
        f"{shown(text)} is not a time from 1970 to 2199 in the format of RFC 3339 or RFC 1123"
    )


def shown(value: object) -> str:
    """Return a short ASCII description of a value for error messages."""
    if value is None:
        return "nothing"
    return ascii(value[:SHOWN]) if isinstance(value, str) else f"{type(value).__name__}"


def _rfc1123(text: str) -> Instant:
    at = parsedate_to_datetime(text)
    if at.tzinfo is None:
        raise ValueError("the time has no time zone")
    return Instant(int(at.timestamp()) * NS)
