"""HTTP client of a Ray dashboard: each request has the cluster's token and a timeout, and every failure is a `RayUnavailable`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from tuner.domain.errors import Unavailable

DEFAULT_PORT = 8265


class RayUnavailable(Unavailable):
    """The Ray cluster does not answer."""


class ClusterStarting(RayUnavailable):
    """The local Ray cluster is starting."""


class Dashboard:
    """A connection to a dashboard. It may be shared between threads and starts none itself. Call `close()` when done.

    It uses plain HTTP instead of Ray's own client, which has no timeouts, prefers `RAY_ADDRESS` over its arguments,
    and imports Ray into the caller, which takes a second and 100 MB.
    """

    def __init__(self, url: str, token: str | None, *, timeout_s: float = 10.0) -> None:
        self.url, self.token = url.rstrip("/"), token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # `trust_env=False` ignores the environment's proxies, because they are for the internet and a cluster is reached directly.
        # Certificates are loaded only for TLS, because loading them takes longer than a request.
        verify = self.url.startswith("https:")
        self._http = httpx2.Client(
            base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False, verify=verify
        )

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx2.Response:
        """Send a request and return the answer, even if its status is an error.

        Raises:
            RayUnavailable: There is no answer, or the dashboard refuses the token.
        """
        try:
            answer = self._http.request(method, path, json=body)
        except httpx2.HTTPError as problem:
            raise RayUnavailable(
                f"{method} {self.url}{path} failed: {problem or type(problem).__name__}"
            ) from problem
        if answer.status_code in (401, 403):
            raise RayUnavailable(
                f"{self.url} refuses the token (status {answer.status_code}): if TUNER_RAY_ADDRESS is set, set RAY_AUTH_TOKEN to the "
                "token of that cluster"
            )
        return answer

    def get(self, path: str) -> Any:
        """Return the JSON at this path. Raise RayUnavailable if the answer does not come, has an error status or is not JSON."""
        return self.json(self.call("GET", path))

    def json(self, answer: httpx2.Response) -> Any:
        """Return the JSON of an answer. Raise RayUnavailable if the answer has an error status or is not JSON."""
        if not answer.is_success:
            raise RayUnavailable(
                f"{answer.request.url} answered with status {answer.status_code}: {last_line(answer.text)}"
            )
        try:
            return answer.json()
        except ValueError as problem:
            raise RayUnavailable(
                f"{answer.request.url} did not answer with JSON: {answer.text[:100]!r}"
            ) from problem

    def answers(self) -> bool:
        """Return whether the dashboard and the cluster's control service (GCS) answer."""
        try:
            return self.call("GET", "/api/gcs_healthz").is_success
        except RayUnavailable:
            return False

    def close(self) -> None:
        self._http.close()


def last_line(text: str) -> str:
    """Return the last line of an error text. Ray's error texts are whole tracebacks, whose last line is the error itself."""
    return (text.rstrip(" .\n").splitlines() or [""])[-1][:500]


def dashboard_url(address: str) -> str:
    """Return the URL of a cluster's dashboard, given the value of `TUNER_RAY_ADDRESS`.

    A URL is used unchanged. For `host:port` and `ray://host:port` only the host is used, with the dashboard's default
    port.
    """
    if address.startswith(("http://", "https://")):
        return address.rstrip("/")
    host = urlsplit(address if "://" in address else f"//{address}").hostname
    if not host:
        raise RayUnavailable(
            f"{address!r} is not the address of a Ray cluster: give http://host:{DEFAULT_PORT}"
        )
    return f"http://[{host}]:{DEFAULT_PORT}" if ":" in host else f"http://{host}:{DEFAULT_PORT}"


def cluster_token(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token of an external cluster, or None if none is set.

    Like Ray itself, look in this order at `RAY_AUTH_TOKEN`, the file named by `RAY_AUTH_TOKEN_PATH`, and `~/.ray/auth_token`.
    """
    if token := environment.get("RAY_AUTH_TOKEN"):
        return token
    path = Path(environment.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
