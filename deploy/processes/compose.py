"""Read deploy/compose/compose.yaml like Docker Compose, with addresses instead of the names of its network."""

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
# The most replicas of one service for which its block of ten addresses has room.
REPLICAS_MAX = 9
OURS = "tuner"


class Refused(Exception):
    """Nothing was started. Each line says what is wrong and how to fix it."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Container:
    """A container of the Compose file, with names replaced by addresses."""

    name: str
    service: str
    image: str
    address: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    health: str  #: The command of the health check. Empty if there is none.
    needs: Mapping[str, str]  #: The required condition of each service that it waits for.
    mounts: Mapping[str, str]  #: The source of each mounted path. Empty for a volume.
    ends: bool  #: The container ends after its work and is not restarted.


class Project:
    """The Compose file with the variables `values`, each service at addresses of `network`, such as 127.77.0.

    Args:
        moved: Ports that replace those of the file, by service and port.

    Raises:
        Refused: A value is missing or invalid.
    """

    def __init__(
        self, values: Mapping[str, str], network: str, *, moved: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        self._network, self._moved = network, dict(moved or {})
        config = interpolate(yaml.safe_load(FILE.read_text()), values)
        self.services: dict[str, Any] = config["services"]
        self.secrets = {name: values[secret["environment"]] for name, secret in config["secrets"].items()}
        self._counts = {name: _count(name, service_config) for name, service_config in self.services.items()}

    def containers(self) -> list[Container]:
        return [
            self._container(service, service_config, number)
            for service, service_config in self.services.items()
            for number in range(1, self._counts[service] + 1)
        ]

    def addresses(self, service: str) -> list[str]:
        """Return the addresses of a service. Each service has a block of ten, so that they do not depend on the replicas of other services."""
        block = (list(self.services).index(service) + 1) * 10
        return [f"{self._network}.{block + number}" for number in range(1, max(self._counts[service], 1) + 1)]

    def at_addresses(self, text: str, own: str = "") -> str:
        """Replace `database:5432` by the address of the database. With `own`, replace 0.0.0.0 and 127.0.0.1 by that address."""
        names = "|".join(self.services)
        text = re.sub(rf"(?<![\w.-])({names}):(\d{{2,5}})(?![\w@])", lambda m: self._place(m[1], m[2]), text)
        return re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)\b", own, text) if own else text

    def port(self, service: str, port: int) -> int:
        return self._moved.get((service, port), port)

    def _place(self, service: str, port: str) -> str:
        return f"{self.addresses(service)[0]}:{self.port(service, int(port))}"

    def _container(self, service: str, service_config: dict[str, Any], number: int) -> Container:
        image, _, _ = service_config["image"].rpartition(":")
        is_ours, own = "build" in service_config, self.addresses(service)[number - 1]
        environment = {**(image_environment() if is_ours else {}), **service_config.get("environment", {})}
        command = service_config.get("command") or (image_command() if is_ours else [])
        check = service_config.get("healthcheck") or {"test": image_health() if is_ours else []}
        return Container(
            name=f"{service}-{number}" if service == "tuner" or self._counts[service] > 1 else service,
            service=service,
            image=OURS if is_ours else image,
            address=own,
            command=tuple(self.at_addresses(word, own) for word in command),
            environment={name: self.at_addresses(str(text), own) for name, text in environment.items()},
            health="" if check.get("disable") else _check_command(check["test"]),
            needs={name: how["condition"] for name, how in service_config.get("depends_on", {}).items()},
            mounts=dict(_mounts(service_config)),
            ends=service_config.get("restart") == "no",
        )


def interpolate(node: Any, values: Mapping[str, str]) -> Any:
    """Replace `${NAME:-default}` and `${NAME:?message}` in all strings.

    Raises:
        Refused: A required value is missing.
    """
    if isinstance(node, dict):
        return {name: interpolate(inner, values) for name, inner in node.items()}
    if isinstance(node, list):
        return [interpolate(inner, values) for inner in node]
    if not isinstance(node, str):
        return node
    return re.sub(r"\$\{(\w+)(?::([-?])([^}]*))?\}", lambda m: _value(values, *m.groups()), node)


def _value(values: Mapping[str, str], name: str, kind: str | None, rest: str | None) -> str:
    if given := values.get(name):
        return given
    if kind == "-":
        return rest or ""
    raise Refused(f"{name} is not given: {rest or 'set it'}")


def _count(service: str, service_config: dict[str, Any]) -> int:
    text = str(service_config.get("deploy", {}).get("replicas", 1))
    if not text.isdecimal() or int(text) > REPLICAS_MAX:
        raise Refused(f"replicas is {text!r} for {service}: give a whole number from 0 to {REPLICAS_MAX}")
    return int(text)


def _check_command(test: list[str]) -> str:
    """Return a health check's command as a line of shell."""
    words = [word for word in test if word not in ("CMD", "CMD-SHELL")]
    return words[2] if words[:2] == ["sh", "-c"] else shlex.join(words)


def _mounts(service_config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for volume in service_config.get("volumes", []):
        source, target = volume.split(":")[:2]
        yield target, str((FILE.parent / source).resolve()) if source.startswith(".") else ""


@cache
def _image() -> str:
    """Return the last stage of the Dockerfile, with each instruction on one line."""
    return re.sub(r"\\\n\s*", "", DOCKERFILE.read_text()).rpartition("\nFROM ")[2]


def image_environment() -> dict[str, str]:
    (line,) = re.findall(r"^ENV (.*)$", _image(), re.MULTILINE)
    variables = dict(word.split("=", 1) for word in shlex.split(line))
    return {name: text for name, text in variables.items() if name != "PATH"}


def image_command() -> list[str]:
    (line,) = re.findall(r"^CMD (.*)$", _image(), re.MULTILINE)
    return list(yaml.safe_load(line))


def image_health() -> list[str]:
    (line,) = re.findall(r"^HEALTHCHECK .*?CMD (.*)$", _image(), re.MULTILINE)
    return ["CMD", *yaml.safe_load(line)]
