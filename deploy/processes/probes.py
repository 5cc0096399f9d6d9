"""Whether a part is healthy, by what the Compose file asks of its container."""

import contextlib
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

TIMEOUT_S = 3.0
# The environment's proxies are for the outside world.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Probe(Protocol):
    def passes(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Answers:
    """With status 200 and these words in it; where `any_status`, with whatever it has to say."""

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
    """A command."""

    words: tuple[str, ...]

    def passes(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(self.words, timeout=TIMEOUT_S, capture_output=True)
            return done.returncode == 0
        return False


def asked_by(check: str, address: str, environment: Mapping[str, str]) -> Answers:
    """The URL that a check of a container gets from itself, at the address of its machine. Raises ValueError for other checks."""
    found = re.search(r"http://127\.0\.0\.1:(\$?\w+)(/[^\s\"'|]*)", check)
    if found is None:
        raise ValueError(f"no URL in the check {check!r}")
    port = environment[found[1][1:]] if found[1].startswith("$") else found[1]
    says = re.search(r"grep -q (\w+)", check)
    return Answers(f"http://{address}:{port}{found[2]}", says[1] if says else "")
