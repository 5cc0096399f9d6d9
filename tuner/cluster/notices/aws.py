"""The interruption notice of EC2 Spot.

AWS usually gives the notice two minutes before it interrupts the machine. A hibernation begins together with its notice. The metadata
service answers 404 if it has no notice. Every request carries an IMDSv2 token.
"""

import re
import time

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
from tuner.domain.time import rfc3339

TOKEN_PATH = "/latest/api/token"
ACTION_PATH = "/latest/meta-data/spot/instance-action"
TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "x-aws-ec2-metadata-token"
TTL_MAX_S = 21600
# A token is renewed this long before it expires.
MARGIN_S = 60
ACTIONS = ("terminate", "stop", "hibernate")
_TOKEN = re.compile(r"[!-~]{1,1024}")


def read_action(answer: MetadataAnswer) -> Notice | None:
    if answer.status == 404:
        return None
    succeeded(answer)
    action_document = object_of(answer)
    action, at = string(action_document, "action"), moment(string(action_document, "time"))
    if action not in ACTIONS:
        raise MalformedNotice(f"{shown(action)} is not an action of AWS")
    text = f"AWS will {action} this spot instance at {rfc3339(at)}"
    return Notice("aws/instance-action", at, text)


def read_token(answer: MetadataAnswer) -> tuple[str, int]:
    """Return the IMDSv2 token in an answer of the metadata service, and the lifetime of the token in seconds."""
    succeeded(answer)
    token, ttl = text_of(answer), answer.headers.get(TTL_HEADER, "")
    if not _TOKEN.fullmatch(token):
        raise MalformedNotice("the metadata service did not answer with a session token")
    if not (ttl.isascii() and ttl.isdecimal() and len(ttl) <= len(str(TTL_MAX_S))):
        raise MalformedNotice(
            f"the metadata service gave {shown(ttl)} as the lifetime of its token, which is not a number of seconds"
        )
    return token, int(ttl)


def _ask_for_token(http: httpx2.Client, url: str, timeout_s: float) -> tuple[str, int]:
    headers = {TTL_HEADER: str(TTL_MAX_S)}
    return read_token(ask(http, "PUT", url + TOKEN_PATH, headers=headers, timeout_s=timeout_s))


def is_here(http: httpx2.Client, url: str, timeout_s: float) -> bool:
    """Return True if AWS's metadata service answers at `url`, which shows that this machine runs on AWS.

    Never return False. If another service or none answers, raise an exception.

    Raises:
        MalformedNotice: The answer is not a valid answer of AWS's metadata service.
        TimeoutError, httpx2.HTTPError: There was no complete answer.
    """
    _ask_for_token(http, url, timeout_s)
    return True


class Imds:
    """Client of the instance's metadata service. Used by one thread."""

    def __init__(self, http: httpx2.Client, url: str, *, timeout_s: float) -> None:
        self._http, self._url, self._timeout_s = http, url, timeout_s
        self._token, self._until = "", 0.0

    def get(self, path: str) -> MetadataAnswer:
        answer = self._get(path)
        if answer.status == 401:
            self._until = 0.0
            answer = self._get(path)
        return answer

    def _get(self, path: str) -> MetadataAnswer:
        if time.monotonic() >= self._until:
            self._token, ttl_s = _ask_for_token(self._http, self._url, self._timeout_s)
            self._until = time.monotonic() + ttl_s - min(MARGIN_S, ttl_s / 2)
        headers = {TOKEN_HEADER: self._token}
        return ask(self._http, "GET", self._url + path, headers=headers, timeout_s=self._timeout_s)


class AwsFeed(Feed):
    """The source of the interruption notice for this machine, which it reads from the metadata service."""

    name = "AWS instance-action"

    def __init__(self, imds: Imds, *, pause_s: float) -> None:
        self.pause_s, self._imds = pause_s, imds

    def poll(self, *, wait: bool) -> CurrentNotices:
        notice = read_action(self._imds.get(ACTION_PATH))
        return CurrentNotices(() if notice is None else (notice,))
