"""Notices of EC2 Spot: the interruption notice and the rebalance recommendation.

The interruption notice usually comes two minutes before the end. A hibernation begins at once, without lead time. The rebalance
recommendation may come earlier. The metadata service answers 404 to both requests while there is no such
notice. Every request carries an IMDSv2 token.
"""

import re
import threading
import time
from collections.abc import Callable

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
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
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
    found = object_of(answer)
    action, at = string(found, "action"), moment(string(found, "time"))
    if action not in ACTIONS:
        raise MalformedNotice(f"{shown(action)} is no action of AWS")
    text = f"AWS will {action} this spot instance at {rfc3339(at)}"
    return Notice("aws", "terminate", "aws/instance-action", at, text)


def read_rebalance(answer: MetadataAnswer) -> Notice | None:
    """Return the rebalance recommendation, or None. It has no deadline: the time in it is when it was issued."""
    if answer.status == 404:
        return None
    succeeded(answer)
    at = moment(string(object_of(answer), "noticeTime"))
    text = f"AWS said at {rfc3339(at)} that this spot instance is at an elevated risk of interruption"
    return Notice("aws", "rebalance", "aws/rebalance", None, text)


def read_token(answer: MetadataAnswer) -> tuple[str, int]:
    """Return the token and its lifetime in seconds."""
    succeeded(answer)
    token, ttl = text_of(answer), answer.headers.get(TTL_HEADER, "")
    if not _TOKEN.fullmatch(token):
        raise MalformedNotice("the answer is no token")
    if not (ttl.isascii() and ttl.isdecimal() and len(ttl) <= len(str(TTL_MAX_S))):
        raise MalformedNotice(f"{shown(ttl)} is no lifetime of a token")
    return token, int(ttl)


def _ask_for_token(http: httpx2.Client, url: str, timeout_s: float) -> tuple[str, int]:
    headers = {TTL_HEADER: str(TTL_MAX_S)}
    return read_token(ask(http, "PUT", url + TOKEN_PATH, headers=headers, timeout_s=timeout_s))


def is_here(http: httpx2.Client, url: str, timeout_s: float) -> bool:
    """Return True if AWS answers. Otherwise raise MalformedNotice or an error of `ask`."""
    _ask_for_token(http, url, timeout_s)
    return True


class Imds:
    """Client of the instance's metadata service. All feeds share its token."""

    def __init__(self, http: httpx2.Client, url: str, *, timeout_s: float) -> None:
        self._http, self._url, self._timeout_s = http, url, timeout_s
        self._token, self._until = "", 0.0
        self._renewing = threading.Lock()

    def get(self, path: str) -> MetadataAnswer:
        token = self._valid_token()
        answer = self._get(path, token)
        if answer.status == 401:
            with self._renewing:
                # Another feed may have replaced a rejected token already.
                if self._token == token:
                    self._until = 0.0
            answer = self._get(path, self._valid_token())
        return answer

    def _get(self, path: str, token: str) -> MetadataAnswer:
        headers = {TOKEN_HEADER: token}
        return ask(self._http, "GET", self._url + path, headers=headers, timeout_s=self._timeout_s)

    def _valid_token(self) -> str:
        with self._renewing:
            if time.monotonic() >= self._until:
                self._token, ttl_s = _ask_for_token(self._http, self._url, self._timeout_s)
                self._until = time.monotonic() + ttl_s - min(MARGIN_S, ttl_s / 2)
            return self._token


class AwsFeed(Feed):
    def __init__(
        self, imds: Imds, path: str, read: Callable[[MetadataAnswer], Notice | None], *, pause_s: float
    ) -> None:
        self.name, self.pause_s = f"AWS {path.rsplit('/', 1)[1]}", pause_s
        self._imds, self._path, self._read = imds, path, read

    def look(self, *, wait: bool) -> CurrentNotices:
        notice = self._read(self._imds.get(self._path))
        return CurrentNotices(() if notice is None else (notice,))
