"""Read notices from Azure Scheduled Events: one document with the events of this machine and of others, such as those of its scale set.

Only the events that name this machine count.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from tuner.cluster.notices.feeds import CurrentNotices, Feed, ask
from tuner.cluster.notices.notice import (
    MalformedNotice,
    MetadataAnswer,
    Notice,
    moment,
    object_of,
    shown,
    string,
    succeeded,
    text_of,
)
from tuner.domain.time import Instant, rfc3339, system_now

EVENTS_PATH = "/metadata/scheduledevents"
NAME_PATH = "/metadata/instance/compute/name"
HEADERS = {"Metadata": "true"}
EVENTS_VERSION = {"api-version": "2020-07-01"}
NAME_QUERY = {"api-version": "2021-02-01", "format": "text"}
ACTS = {
    "Preempt": "preempts this spot machine",
    "Terminate": "deletes this machine",
    "Reboot": "reboots this machine",
    "Redeploy": "moves this machine to another host",
}
# The machine stops for some seconds and loses nothing.
FREEZE = "Freeze"
_EVENT_ID = re.compile(r"[0-9A-Za-z._:-]{1,128}")
_NAME = re.compile(r"[\w.()-]{1,90}")


@dataclass(frozen=True, slots=True)
class AzureEvent:
    """A scheduled event of this machine."""

    id: str
    type: str
    shared: bool  #: Whether the event also names other machines.
    not_before: Instant | None  #: The earliest time at which the event begins. None if it may have begun.

    def notice(self, seen: Instant) -> Notice:
        deadline = seen if self.not_before is None else self.not_before
        when = "now" if self.not_before is None else f"at {rfc3339(deadline)} or later"
        return Notice(f"azure/{self.id}", deadline, f"Azure {ACTS[self.type]} {when} ({self.type})")


@dataclass(frozen=True, slots=True)
class AzureDocument:
    """One version of the document of scheduled events."""

    incarnation: int  #: Rises with every change.
    events: tuple[AzureEvent, ...]  #: The events of one machine.
    unread: str  #: Why an event could not be read, or an empty text.


def read_document(answer: MetadataAnswer, machine: str) -> AzureDocument:
    """Return the document with the events of one machine. An unreadable event does not hide the others.

    Args:
        answer: The answer of the metadata service.
        machine: The machine's name in lower case.

    Raises:
        MalformedNotice: The answer is not a document of scheduled events.
    """
    succeeded(answer)
    document = object_of(answer)
    incarnation, listed = document.get("DocumentIncarnation"), document.get("Events")
    if not isinstance(incarnation, int) or not isinstance(listed, list):
        raise MalformedNotice("the answer is not a document of scheduled events")
    events, unread = [], ""
    for raw_event in listed:
        try:
            named = _machines(raw_event)
            if machine in named:
                event = _event(raw_event, shared=len(named) > 1)
                events += [event] if event.type != FREEZE else []
        except MalformedNotice as error:
            unread = str(error)
    return AzureDocument(incarnation, tuple(events), unread)


def _machines(event: object) -> frozenset[str]:
    names = event.get("Resources") if isinstance(event, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise MalformedNotice("an event does not list its machines")
    return frozenset(name.casefold() for name in names)


def _event(fields: Mapping[str, object], *, shared: bool) -> AzureEvent:
    event_id, event_type = string(fields, "EventId"), string(fields, "EventType")
    if not _EVENT_ID.fullmatch(event_id):
        raise MalformedNotice(f"{shown(event_id)} is not the id of an event")
    if event_type not in (*ACTS, FREEZE):
        raise MalformedNotice(f"{shown(event_type)} is not a type of event")
    # NotBefore is empty once the event has begun.
    not_before = moment(string(fields, "NotBefore")) if fields.get("NotBefore") else None
    return AzureEvent(event_id, event_type, shared, not_before)


def read_name(answer: MetadataAnswer) -> str:
    """Return the machine's name in lower case, because Azure's names ignore case."""
    succeeded(answer)
    name = text_of(answer)
    if not _NAME.fullmatch(name):
        raise MalformedNotice(f"{shown(name)} is not the name of a machine")
    return name.casefold()


def _ask_for_name(http: httpx2.Client, url: str, timeout_s: float) -> str:
    return read_name(
        ask(http, "GET", url + NAME_PATH, headers=HEADERS, params=NAME_QUERY, timeout_s=timeout_s)
    )


def is_here(http: httpx2.Client, url: str, timeout_s: float) -> bool:
    """Return True if Azure's metadata service answers at `url`, which shows that this machine runs on Azure.

    Never return False. If another service or none answers, raise an exception.

    Raises:
        MalformedNotice: The answer is not a valid answer of Azure's metadata service.
        TimeoutError, httpx2.HTTPError: There was no complete answer.
    """
    return bool(_ask_for_name(http, url, timeout_s))


class AzureFeed(Feed):
    """The source of the notices that Azure gives as scheduled events of this machine.

    The first answer may take minutes (`first_s`), because the first request enables the service.
    """

    def __init__(
        self, http: httpx2.Client, url: str, pause_s: float, timeout_s: float, first_s: float
    ) -> None:
        self.name, self.pause_s = "Azure scheduled events", pause_s
        self._http, self._url = http, url
        self._machine, self._incarnation = "", 0
        self._timeout_s, self._events_timeout_s = timeout_s, first_s
        self._ours: dict[str, AzureEvent] = {}

    def poll(self, *, wait: bool) -> CurrentNotices:
        if not self._machine:
            self._machine = _ask_for_name(self._http, self._url, self._timeout_s)
        document = read_document(self._ask("GET", timeout_s=self._events_timeout_s), self._machine)
        self._events_timeout_s = self._timeout_s
        self._ours = {f"azure/{event.id}": event for event in document.events}
        before, self._incarnation = self._incarnation, document.incarnation
        doubt = document.unread
        if document.incarnation < before:
            # This document is older than the one before it. An event that is missing here may still be planned. `doubt` is therefore set,
            # so that the notice of the event does not count as withdrawn.
            # The next document is compared with this one. If its number is the same or higher, it is accepted without doubt.
            doubt = f"the document of scheduled events is outdated: it has the number {document.incarnation}, but {before} came before"
        return CurrentNotices(tuple(event.notice(system_now()) for event in document.events), doubt)

    def release(self, notice_id: str) -> bool:
        """Approve the event early and return True if Azure accepts.

        Return False if no current event has this id. Also return False if the event names other machines as well, because Azure would begin
        the event on all of them.
        """
        event = self._ours.get(notice_id)
        if event is None or event.shared:
            return False
        body = {"StartRequests": [{"EventId": event.id}]}
        return (self._ask("POST", timeout_s=self._timeout_s, body=body)).status == 200

    def _ask(
        self, method: str, *, timeout_s: float, body: Mapping[str, object] | None = None
    ) -> MetadataAnswer:
        url = self._url + EVENTS_PATH
        return ask(
            self._http, method, url, headers=HEADERS, params=EVENTS_VERSION, timeout_s=timeout_s, body=body
        )
