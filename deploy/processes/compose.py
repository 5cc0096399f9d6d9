"""deploy/compose/compose.yaml as Docker Compose reads it, with an address in place of each name that its network would know."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[1]
FILE = DEPLOY / "compose/compose.yaml"
DOCKERFILE = DEPLOY / "Dockerfile"
# As many of one service as its block of ten addresses has room for.
REPLICAS_MAX = 9
OURS = "tuner"


class Refused(Exception):
    """What is wrong and how to fix it, one line each. Nothing was started."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Container:
    """One of them, as the file has it but for names. `health` is the command of its check, empty for none; `needs`: what each service
    that it waits for has to be. `mounts`: what is where inside."""

    name: str
    service: str
    image: str
    address: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    health: str
    needs: Mapping[str, str]
    mounts: Mapping[str, str]
    ends: bool


class Project:
    """The file with `values` in it, each service at addresses of `network`, such as 127.77.0. `moved`: ports that are others
    here, by service and port. Raises Refused for values that cannot be."""

    def __init__(
        self, values: Mapping[str, str], network: str, *, moved: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        self._network, self._moved = network, dict(moved or {})
        found = interpolated(yaml.safe_load(FILE.read_text()), values)
        self.services: dict[str, Any] = found["services"]
        self.secrets = {name: values[one["environment"]] for name, one in found["secrets"].items()}
        self._counts = {name: _count(name, one) for name, one in self.services.items()}

    def containers(self) -> list[Container]:
        return [
            self._container(service, one, number)
            for service, one in self.services.items()
            for number in range(1, self._counts[service] + 1)
        ]

    def addresses(self, service: str) -> list[str]:
        """Ten for each service, in the file's order, so that they stay what they are however many of another there are."""
        block = (list(self.services).index(service) + 1) * 10
        return [f"{self._network}.{block + number}" for number in range(1, max(self._counts[service], 1) + 1)]

    def at_addresses(self, text: str, own: str = "") -> str:
        """`database:5432` is where the database is. To a process of `own`, all addresses and the loopback are its machine's."""
        names = "|".join(self.services)
        text = re.sub(rf"(?<![\w.-])({names}):(\d{{2,5}})(?![\w@])", lambda m: self._place(m[1], m[2]), text)
        return re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)\b", own, text) if own else text

    def port(self, service: str, port: int) -> int:
        return self._moved.get((service, port), port)

    def _place(self, service: str, port: str) -> str:
        return f"{self.addresses(service)[0]}:{self.port(service, int(port))}"

    def _container(self, service: str, one: dict[str, Any], number: int) -> Container:
        image, _, _ = one["image"].rpartition(":")
        is_ours, own = "build" in one, self.addresses(service)[number - 1]
        environment = {**(image_environment() if is_ours else {}), **one.get("environment", {})}
        command = one.get("command") or (image_command() if is_ours else [])
        checked = one.get("healthcheck") or {"test": image_health() if is_ours else []}
        return Container(
            name=f"{service}-{number}" if service == "tuner" or self._counts[service] > 1 else service,
            service=service,
            image=OURS if is_ours else image,
            address=own,
            command=tuple(self.at_addresses(word, own) for word in command),
            environment={name: self.at_addresses(str(text), own) for name, text in environment.items()},
            health="" if checked.get("disable") else _words_of_check(checked["test"]),
            needs={name: how["condition"] for name, how in one.get("depends_on", {}).items()},
            mounts=dict(_mounts(one)),
            ends=one.get("restart") == "no",
        )


def interpolated(found: Any, values: Mapping[str, str]) -> Any:
    """`${NAME:-default}` and `${NAME:?message}` replaced, in all strings of it. Raises Refused for what has to be given."""
    if isinstance(found, dict):
        return {name: interpolated(one, values) for name, one in found.items()}
    if isinstance(found, list):
        return [interpolated(one, values) for one in found]
    if not isinstance(found, str):
        return found
    return re.sub(r"\$\{(\w+)(?::([-?])([^}]*))?\}", lambda m: _value(values, *m.groups()), found)


def _value(values: Mapping[str, str], name: str, kind: str | None, rest: str | None) -> str:
    if given := values.get(name):
        return given
    if kind == "-":
        return rest or ""
    raise Refused(f"{name} is not given: {rest or 'set it'}")


def _count(service: str, one: dict[str, Any]) -> int:
    text = str(one.get("deploy", {}).get("replicas", 1))
    if not text.isdecimal() or int(text) > REPLICAS_MAX:
        raise Refused(f"{text!r} of {service}: give a whole number from 0 to {REPLICAS_MAX}")
    return int(text)


def _words_of_check(test: list[str]) -> str:
    """CMD and its words as a line of shell."""
    words = [word for word in test if word not in ("CMD", "CMD-SHELL")]
    return words[2] if words[:2] == ["sh", "-c"] else shlex.join(words)


def _mounts(one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for volume in one.get("volumes", []):
        source, target = volume.split(":")[:2]
        yield target, str((FILE.parent / source).resolve()) if source.startswith(".") else ""


@cache
def _image() -> str:
    """The last stage of the Dockerfile, each instruction on a line."""
    return re.sub(r"\\\n\s*", "", DOCKERFILE.read_text()).rpartition("\nFROM ")[2]


def image_environment() -> dict[str, str]:
    (line,) = re.findall(r"^ENV (.*)$", _image(), re.MULTILINE)
    found = dict(word.split("=", 1) for word in shlex.split(line))
    return {name: text for name, text in found.items() if name != "PATH"}


def image_command() -> list[str]:
    (line,) = re.findall(r"^CMD (.*)$", _image(), re.MULTILINE)
    return list(yaml.safe_load(line))


def image_health() -> list[str]:
    (line,) = re.findall(r"^HEALTHCHECK .*?CMD (.*)$", _image(), re.MULTILINE)
    return ["CMD", *yaml.safe_load(line)]
