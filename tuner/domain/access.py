"""Access control: users, projects, roles, and the keys that identify a user in a project.

A key consists of `tnr_`, eight letters or digits that identify the key in lists, 256 random bits, and a checksum. The checksum lets the service
reject a mistyped key without a database query, and lets secret scanners rule out look-alikes. A key has the rights that its user has
in its project at the time of the request.
"""

import re
import zlib
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, get_args

from tuner.domain.errors import Fault, Forbidden
from tuner.domain.text import nearest
from tuner.domain.time import DAY_NS, MINUTE_NS

MemberRole = Literal["viewer", "submitter", "admin"]
Role = Literal["viewer", "submitter", "admin", "operator"]
"""Each role includes the rights of the roles before it. The operator has the service's own key and may act in every project."""

MEMBER_ROLES: tuple[MemberRole, ...] = get_args(MemberRole)
ROLES: tuple[Role, ...] = get_args(Role)
GIVEN_BY = {
    "viewer": "an admin of the project",
    "submitter": "an admin of the project",
    "admin": "another admin of the project or the operator of the service",
    "operator": "only the service's own key",
}

DEFAULT_PROJECT = "default"
"""The project that always exists. Data about the whole cluster is stored in this project and belongs to the operator."""
OPERATOR, TUNER = "operator", "tuner"
"""Names of actors that are not users: the holder of the service's own key, and the service when it acts without a request."""

LONGEST_LIFE_NS, SHORTEST_LIFE_NS, LONGEST_OVERLAP_NS = 366 * DAY_NS, MINUTE_NS, DAY_NS

PROJECT_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
USER_NAME = re.compile(r"[a-z0-9][a-z0-9._@-]{0,62}")
_KEY = re.compile(r"(tnr_[a-z0-9]{8})_([A-Za-z0-9_-]{43})([0-9a-f]{8})")
MAX_KEY_NAME = 100


@dataclass(frozen=True, slots=True)
class Actor:
    """The user who makes a request, and the project that the request is for."""

    user: str
    project: str
    role: Role
    key: str = ""  #: Id of the key. Empty for the operator, and if the service acts without a request.
    request: str = ""  #: Id of the request.

    @property
    def is_operator(self) -> bool:
        return self.role == "operator"

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def need(self, role: Role) -> None:
        """Raise Forbidden if the actor does not have the role. The error names the role and who can give it."""
        if self.may(role):
            return
        if role == "operator":
            raise Forbidden(
                f"{GIVEN_BY[role]} may do this; {self.user} has only the role {self.role} in the project {self.project}"
            )
        raise Forbidden(
            f"this needs the role {role}, but {self.user} has only the role {self.role} in the project {self.project}; "
            f"{GIVEN_BY[role]} can grant the role with PUT /v1/members/{self.user}"
        )


BACKGROUND = Actor(TUNER, DEFAULT_PROJECT, "operator")


@dataclass(frozen=True, slots=True)
class KeyText:
    """A key: its public `id`, and its whole `text`, which is secret and must not be shown."""

    id: str
    text: str

    @property
    def sha256(self) -> str:
        """Return the SHA-256 hash of the whole key. The service stores this hash instead of the key.

        A plain hash is enough for 256 random bits. A slow hash is needed only for passwords that people choose.
        """
        return sha256(self.text.encode()).hexdigest()


def key_text(id_: str, random: str) -> KeyText:
    """Build a key from its id and 256 random bits in base64url, and append the checksum."""
    body = f"{id_}_{random}"
    return KeyText(id_, f"{body}{_checksum(body)}")


def read_key(text: str) -> KeyText | None:
    """Parse a key. Return None if the text does not have the form of a key, or if its checksum is wrong."""
    match = _KEY.fullmatch(text)
    if match is None or _checksum(f"{match[1]}_{match[2]}") != match[3]:
        return None
    return KeyText(match[1], text)


def is_like_a_key(text: str) -> bool:
    return text.startswith("tnr_")


def project_fault(name: str) -> Fault | None:
    if PROJECT_NAME.fullmatch(name):
        return None
    return Fault(
        "/name",
        "use at most 63 lower-case letters, digits and -, a letter or digit first: the name is also used as the name of a folder",
    )


def user_fault(name: str) -> Fault | None:
    if name in (OPERATOR, TUNER):
        return Fault("user", f"{name!r} is reserved for the service itself; use another name")
    if USER_NAME.fullmatch(name):
        return None
    return Fault("user", "use at most 63 lower-case letters, digits and . _ @ -, a letter or digit first")


def role_fault(role: str) -> Fault | None:
    if role in MEMBER_ROLES:
        return None
    near = nearest(role, MEMBER_ROLES, 1)
    suggestion = f"did you mean {near[0]}? " if near else ""
    return Fault("/role", f"{suggestion}the roles are {', '.join(MEMBER_ROLES)}")


def key_name_fault(name: str) -> Fault | None:
    if name.strip() and len(name) <= MAX_KEY_NAME and name.isprintable():
        return None
    return Fault("/name", f"describe what the key is for in one line of 1 to {MAX_KEY_NAME} characters")


def life_fault(life_ns: int) -> Fault | None:
    if SHORTEST_LIFE_NS <= life_ns <= LONGEST_LIFE_NS:
        return None
    return Fault("/expires_in", "must be from 1m to 366d")


def overlap_fault(overlap_ns: int) -> Fault | None:
    if 0 <= overlap_ns <= LONGEST_OVERLAP_NS:
        return None
    return Fault("/overlap", "must be from 0s to 24h; the old key remains valid for this time")


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
