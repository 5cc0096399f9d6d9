"""Calls about who may do what: projects, users, members and keys."""

from typing import TYPE_CHECKING

from tuner.client.http import ask, exchange, quoted, request
from tuner.client.methods import call, series
from tuner.client.paging import pages
from tuner.client.steps import Series, Steps

if TYPE_CHECKING:  # each is loaded when it is asked for
    from tuner.schemas.access import Key, Member, Project, User, WhoAmI

PAGE = 100


class AccessCalls:
    url: str

    @call
    def whoami(self) -> Steps["WhoAmI"]:
        """Whose key this is, in which project, with which role."""
        from tuner.schemas.access import WhoAmI

        return ask(self.url, WhoAmI, "GET", "/v1/whoami")

    @series
    def projects(self) -> Series["Project"]:
        """By name: all for the operator, for others their own."""
        from tuner.schemas.access import ProjectPage

        return pages(self.url, ProjectPage, "/v1/projects", {}, page=PAGE)

    @call
    def project(self, name: str) -> Steps["Project"]:
        from tuner.schemas.access import Project

        return ask(self.url, Project, "GET", f"/v1/projects/{quoted(name)}")

    @call
    def add_project(self, name: str) -> Steps["Project"]:
        """For the operator, who works in it with `Client(project=name)`."""
        from tuner.schemas.access import Project

        return ask(self.url, Project, "POST", "/v1/projects", body={"name": name})

    @series
    def users(self) -> Series["User"]:
        """By name, of all projects; for the operator."""
        from tuner.schemas.access import UserPage

        return pages(self.url, UserPage, "/v1/users", {}, page=PAGE)

    @call
    def disable_user(self, name: str, *, disabled: bool = True) -> Steps["User"]:
        """Refuses all keys of theirs, or takes them again; for the operator."""
        from tuner.schemas.access import User

        body = {"disabled": disabled}
        return ask(self.url, User, "PATCH", f"/v1/users/{quoted(name)}", body=body, repeat=True)

    @series
    def members(self) -> Series["Member"]:
        """Of the project, by name; for its admins."""
        from tuner.schemas.access import MemberPage

        return pages(self.url, MemberPage, "/v1/members", {}, page=PAGE)

    @call
    def put_member(self, user: str, role: str) -> Steps["Member"]:
        """Takes a user into the project, or gives a member another role: viewer, submitter or admin."""
        from tuner.schemas.access import Member

        path = f"/v1/members/{quoted(user)}"
        return ask(self.url, Member, "PUT", path, body={"role": role}, repeat=True)

    @call
    def remove_member(self, user: str) -> Steps[None]:
        """All keys of theirs in the project are revoked with it."""
        yield from exchange(self.url, request("DELETE", f"/v1/members/{quoted(user)}"))

    @series
    def keys(self) -> Series["Key"]:
        """The newest first, none of them whole: all of the project for its admins, for others their own."""
        from tuner.schemas.access import KeyPage

        return pages(self.url, KeyPage, "/v1/keys", {}, page=PAGE)

    @call
    def make_key(self, user: str, name: str, *, expires_in: str = "90d") -> Steps["Key"]:
        """For a member; for admins. The answer alone has the whole key, as `secret`."""
        from tuner.schemas.access import Key

        body = {"user": user, "name": name, "expires_in": expires_in}
        return ask(self.url, Key, "POST", "/v1/keys", body=body)

    @call
    def rotate_key(self, key: str, *, overlap: str = "1h") -> Steps["Key"]:
        """Another one in its stead, whole as `secret`; the one before goes on for `overlap`."""
        from tuner.schemas.access import Key

        return ask(self.url, Key, "POST", f"/v1/keys/{quoted(key)}/rotate", body={"overlap": overlap})

    @call
    def revoke_key(self, key: str) -> Steps[None]:
        """The next request with it is refused."""
        yield from exchange(self.url, request("DELETE", f"/v1/keys/{quoted(key)}"))
