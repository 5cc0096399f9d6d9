"""Health checks of parts, like those of the containers in the Compose file."""

import contextlib
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

TIMEOUT_S = 3.0
# Proxies of the environment are only for other machines.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Probe(Protocol):
    def passes(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Answers:
    """The URL answers with status 200 and a body that contains `says`, or with any status if `any_status` is set."""

    url: str
    says: str = ""
    any_status: bool = False

    def passes(self) -> bool:
        try:
            with _direct.open(self.url, timeout=TIMEOUT_S) as answer:
                return self.says in answer.read(1 << 16).decode(errors="replace")
        except urllib.error.HTTPError:
            return self.any_status
        except (OSError, ValueError):
            return False


@dataclass(frozen=True, slots=True)
class Succeeds:
    """The command exits with status 0."""

    words: tuple[str, ...]

    def passes(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            completed = subprocess.run(self.words, timeout=TIMEOUT_S, capture_output=True)
            return completed.returncode == 0
        return False


def probe_of_check(check: str, address: str, environment: Mapping[str, str]) -> Answers:
    """Return the probe that requests the URL of a container's check at `address`.

    Raises:
        ValueError: The check does not request a URL.
    """
    url = re.search(r"http://127\.0\.0\.1:(\$?\w+)(/[^\s\"'|]*)", check)
    if url is None:
        raise ValueError(f"no URL in the check {check!r}")
    port = environment[url[1][1:]] if url[1].startswith("$") else url[1]
    says = re.search(r"grep -q (\w+)", check)
    return Answers(f"http://{address}:{port}{url[2]}", says[1] if says else "")
