"""Read the notices of Google Compute Engine: preemptions, 30 s ahead, and host maintenance that affects this machine.

The metadata server always answers with status 200, with or without a notice. The text of the answer says whether there is a
notice. A request may wait until the value changes.
"""

from collections.abc import Callable

import httpx2

from tuner.cluster.notices.feeds import CurrentNotices, Feed, ask
from tuner.cluster.notices.notice import (
    MalformedNotice,
    MetadataAnswer,
    Notice,
    shown,
    succeeded,
    text_of,
)
from tuner.domain.time import Instant, seconds_ns

BASE = "/computeMetadata/v1/instance"
HEADERS = {"Metadata-Flavor": "Google"}
# Machines without a GPU get the notice this long before the maintenance, those with a GPU one hour before.
MAINTENANCE_LEAD_S = 60.0
STOPS = "TERMINATE_ON_HOST_MAINTENANCE"
# There is no maintenance, or the machine moves to another host as it runs and loses nothing.
HARMLESS = ("NONE", "MIGRATE_ON_HOST_MAINTENANCE")


def read_preempted(answer: MetadataAnswer, seen: Instant, *, lead_s: float) -> Notice | None:
    """Return the preemption notice, or None if there is none.

    Google sends no deadline. The deadline is therefore assumed to be `lead_s` seconds after `seen`.
    """
    match _value(answer):
        case "FALSE":
            return None
        case "TRUE":
            deadline = Instant(seen + seconds_ns(lead_s))
            text = f"Google will preempt this machine in about {lead_s:g} s"
            return Notice("gcp/preempted", deadline, text)
        case value:
            raise MalformedNotice(f"{shown(value)} is neither TRUE nor FALSE")


def read_maintenance(answer: MetadataAnswer, seen: Instant) -> Notice | None:
    value = _value(answer)
    if value in HARMLESS:
        return None
    if value != STOPS:
        raise MalformedNotice(f"{shown(value)} is not a maintenance event of Google")
    deadline = Instant(seen + seconds_ns(MAINTENANCE_LEAD_S))
    return Notice(
        "gcp/maintenance-event", deadline, "Google will stop this machine for maintenance of its host"
    )


def _value(answer: MetadataAnswer) -> str:
    succeeded(answer)
    if answer.headers.get("metadata-flavor") != "Google":
        raise MalformedNotice("the answer is not from Google's metadata server")
    return text_of(answer)


def is_here(http: httpx2.Client, url: str, timeout_s: float) -> bool:
    """Return True if Google's metadata server answers at `url`, which shows that this machine runs on Google Cloud.

    Return False only if the answer contains no machine id. If another server or none answers, raise an exception.

    Raises:
        MalformedNotice: The answer is not a valid answer of Google's metadata server.
        TimeoutError, httpx2.HTTPError: There was no complete answer.
    """
    return bool(_value(ask(http, "GET", f"{url}{BASE}/id", headers=HEADERS, timeout_s=timeout_s)))


class GcpFeed(Feed):
    """The source of one of Google's two kinds of notices: preemptions, or maintenance. The constructor's `key` names the kind.

    The notice is the value `key` of the metadata server. A request waits up to `hang_s` seconds for a change of the value. The answer may
    take `timeout_s` seconds more.
    """

    def __init__(
        self,
        http: httpx2.Client,
        url: str,
        key: str,
        read: Callable[[MetadataAnswer], Notice | None],
        *,
        pause_s: float,
        hang_s: int,
        timeout_s: float,
    ) -> None:
        self.name, self.pause_s = f"Google {key}", pause_s
        self._http, self._url, self._read = http, f"{url}{BASE}/{key}", read
        self._hang_s, self._timeout_s = hang_s, hang_s + timeout_s
        self._etag = ""

    def poll(self, *, wait: bool) -> CurrentNotices:
        # With the tag of the last value, a change between two requests is answered at once and no change is missed.
        waiting = {"wait_for_change": "true", "last_etag": self._etag, "timeout_sec": str(self._hang_s)}
        params = waiting if wait and self._etag else None
        answer = ask(self._http, "GET", self._url, headers=HEADERS, params=params, timeout_s=self._timeout_s)
        notice = self._read(answer)
        self._etag = answer.headers.get("etag", "")
        return CurrentNotices(() if notice is None else (notice,))
