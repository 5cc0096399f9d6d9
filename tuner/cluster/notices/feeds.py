"""Sources of preemption notices: the interface of a feed, and requests to a metadata service."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from tuner.cluster.notices.notice import MalformedNotice, MetadataAnswer, Notice

BYTES_MAX = 256 * 1024
CONNECT_S = 2.0


@dataclass(frozen=True, slots=True)
class CurrentNotices:
    """The answer of one source: all its current notices for this machine."""

    notices: tuple[Notice, ...]
    doubt: str = ""  #: Why some notices may be missing, or an empty text. If it is set, missing notices do not count as withdrawn.


class Feed(ABC):
    """One source of notices. One thread calls `poll`; any thread may call `release`."""

    name: str
    pause_s: float
    """Seconds between two calls of `poll`."""

    @abstractmethod
    def poll(self, *, wait: bool) -> CurrentNotices:
        """Return the current notices. May raise any exception.

        Args:
            wait: Whether the call may wait until the notices change, if the source supports that.
        """

    def release(self, notice_id: str) -> bool:
        """Tell the source that it may take the machine away before the notice's deadline. May raise any exception.

        Return False if the source does not accept that or does not support it.
        """
        return False


def metadata_client() -> httpx2.Client:
    """Return an HTTP client for metadata services. Any thread may use it.

    It uses no proxy and follows no redirect, because both could lead away from this machine's own metadata. It keeps no connections,
    because a connection that broke during a live migration would only be noticed by a timeout.
    """
    return httpx2.Client(
        trust_env=False,
        follow_redirects=False,
        verify=False,  # Metadata services have no TLS, and loading certificates takes longer than a request.
        limits=httpx2.Limits(max_keepalive_connections=0),
        headers={"accept-encoding": "identity", "user-agent": "tuner"},
    )


def ask(
    http: httpx2.Client,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    params: Mapping[str, str] | None = None,
    body: Mapping[str, object] | None = None,
) -> MetadataAnswer:
    """Send a request and return the complete answer, with any status.

    Raises:
        MalformedNotice: The answer is larger than `BYTES_MAX`.
        TimeoutError, httpx2.HTTPError: There was no complete answer.
    """
    limits = httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S))
    deadline = time.monotonic() + timeout_s
    content = bytearray()
    with http.stream(method, url, headers=headers, params=params, json=body, timeout=limits) as answer:
        for part in answer.iter_raw():
            content += part
            if len(content) > BYTES_MAX:
                raise MalformedNotice(f"the answer is larger than {BYTES_MAX} bytes")
            # The client's timeouts apply to each part of an answer. An answer that comes byte by byte would never exceed them.
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} gave no complete answer within {timeout_s:g} s")
        lower = {name.lower(): value for name, value in answer.headers.items()}
        return MetadataAnswer(answer.status_code, lower, bytes(content))
