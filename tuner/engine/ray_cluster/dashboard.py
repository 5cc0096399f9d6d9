"""One door to a cluster's dashboard: HTTP with a token, a timeout on everything, one class of error."""

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


class Dashboard:
    """Plain HTTP rather than Ray's own client, which has no timeouts, obeys `RAY_ADDRESS` over its arguments, and imports
    Ray (a second, 100 MB) into the caller. May be shared between threads; starts none. `close()` it when done."""

    def __init__(self, url: str, token: str | None, *, timeout_s: float = 10.0) -> None:
        self.url, self.token = url.rstrip("/"), token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # The environment's proxies are for the outside world; a cluster is reached directly.
        # To read the system's certificates takes longer than to ask; without TLS there is nothing to verify.
        verify = self.url.startswith("https:")
        self._http = httpx2.Client(
            base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False, verify=verify
        )

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx2.Response:
        """Any answer is returned, refusals too; raises RayUnavailable where none comes, or one that the token is to blame for."""
        try:
            answer = self._http.request(method, path, json=body)
        except httpx2.HTTPError as problem:
            raise RayUnavailable(
                f"{method} {self.url}{path}: {problem or type(problem).__name__}"
            ) from problem
        if answer.status_code in (401, 403):
            raise RayUnavailable(f"{self.url} refuses the token (status {answer.status_code})")
        return answer

    def get(self, path: str) -> Any:
        """The JSON at this path; raises RayUnavailable for anything else."""
        return self.json(self.call("GET", path))

    def json(self, answer: httpx2.Response) -> Any:
        if not answer.is_success:
            raise RayUnavailable(
                f"{answer.request.url}: status {answer.status_code}: {last_line(answer.text)}"
            )
        try:
            return answer.json()
        except ValueError as problem:
            raise RayUnavailable(f"{answer.request.url} answers no JSON: {answer.text[:100]!r}") from problem

    def answers(self) -> bool:
        """Whether the dashboard and, behind it, the cluster's control service (GCS) are well."""
        try:
            return self.call("GET", "/api/gcs_healthz").is_success
        except RayUnavailable:
            return False

    def close(self) -> None:
        self._http.close()


def last_line(text: str) -> str:
    """Ray answers errors with a whole traceback, whose last line says what is wrong."""
    return (text.rstrip(" .\n").splitlines() or [""])[-1][:500]


def dashboard_url(address: str) -> str:
    """Where the dashboard of a cluster is, from `TUNER_RAY_ADDRESS`: a URL is taken as it is, of `host:port` or
    `ray://host:port` the host is, with the dashboard's usual port."""
    if address.startswith(("http://", "https://")):
        return address.rstrip("/")
    host = urlsplit(address if "://" in address else f"//{address}").hostname
    if not host:
        raise RayUnavailable(f"{address!r} is no address of a Ray cluster: give http://host:{DEFAULT_PORT}")
    return f"http://[{host}]:{DEFAULT_PORT}" if ":" in host else f"http://{host}:{DEFAULT_PORT}"


def cluster_token(environment: Mapping[str, str] = os.environ) -> str | None:
    """The token for a cluster that somebody else keeps, from where Ray itself looks for it; None where there is none."""
    if token := environment.get("RAY_AUTH_TOKEN"):
        return token
    path = Path(environment.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
