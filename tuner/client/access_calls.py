"""Calls about access: projects, users, members and API keys."""

from typing import TYPE_CHECKING

from tuner.client.http import ask, exchange, quoted, request
from tuner.client.methods import call, series
from tuner.client.paging import pages
from tuner.client.steps import Series, Steps

if TYPE_CHECKING:  # each is imported by the call that needs it, so that importing the client stays fast
    from tuner.schemas.access import Key, Member, Project, User, WhoAmI

PAGE = 100


class AccessCalls:
    url: str

    @call
    def whoami(self) -> Steps["WhoAmI"]:
        """Return the user, project and role that this client's API key belongs to."""
        from tuner.schemas.access import WhoAmI

        return ask(self.url, WhoAmI, "GET", "/v1/whoami")

    @series
    def projects(self) -> Series["Project"]:
        """Yield projects, ordered by name. The operator gets all projects; other users get those that they are members of."""
        from tuner.schemas.access import ProjectPage

        return pages(self.url, ProjectPage, "/v1/projects", {}, page=PAGE)

    @call
    def project(self, name: str) -> Steps["Project"]:
        from tuner.schemas.access import Project

        return ask(self.url, Project, "GET", f"/v1/projects/{quoted(name)}")

    @call
    def add_project(self, name: str) -> Steps["Project"]:
        """Create a project. Only the operator may do this. To work in the new project, the operator uses `Client(project=name)`."""
        from tuner.schemas.access import Project

        return ask(self.url, Project, "POST", "/v1/projects", body={"name": name})

    @series
    def users(self) -> Series["User"]:
        """Yield the users of all projects, ordered by name. Only the operator may do this."""
        from tuner.schemas.access import UserPage

        return pages(self.url, UserPage, "/v1/users", {}, page=PAGE)

    @call
    def disable_user(self, name: str, *, disabled: bool = True) -> Steps["User"]:
        """Disable all API keys of a user, or re-enable them with `disabled=False`. Only the operator may do this."""
        from tuner.schemas.access import User

        body = {"disabled": disabled}
        return ask(self.url, User, "PATCH", f"/v1/users/{quoted(name)}", body=body, repeat=True)

    @series
    def members(self) -> Series["Member"]:
        """Yield the members of the project, ordered by name. Only the project's admins may do this."""
        from tuner.schemas.access import MemberPage

        return pages(self.url, MemberPage, "/v1/members", {}, page=PAGE)

    @call
    def put_member(self, user: str, role: str) -> Steps["Member"]:
        """Add a user to the project, or change a member's role. Roles are `viewer`, `submitter` and `admin`."""
        from tuner.schemas.access import Member

        path = f"/v1/members/{quoted(user)}"
        return ask(self.url, Member, "PUT", path, body={"role": role}, repeat=True)

    @call
    def remove_member(self, user: str) -> Steps[None]:
        """Remove a member from the project, and revoke all their API keys in it."""
        yield from exchange(self.url, request("DELETE", f"/v1/members/{quoted(user)}"))

    @series
    def keys(self) -> Series["Key"]:
        """Yield API keys without their secrets, newest first. Admins get all keys of the project; other users get their own."""
        from tuner.schemas.access import KeyPage

        return pages(self.url, KeyPage, "/v1/keys", {}, page=PAGE)

    @call
    def make_key(self, user: str, name: str, *, expires_in: str = "90d") -> Steps["Key"]:
        """Create an API key for a member. Only admins may do this. The complete key is returned only here, as `secret`."""
        from tuner.schemas.access import Key

        body = {"user": user, "name": name, "expires_in": expires_in}
        return ask(self.url, Key, "POST", "/v1/keys", body=body)

    @call
    def rotate_key(self, key: str, *, overlap: str = "1h") -> Steps["Key"]:
        """Replace an API key. The answer contains the new key as `secret`. The old key stays valid for `overlap`."""
        from tuner.schemas.access import Key

        return ask(self.url, Key, "POST", f"/v1/keys/{quoted(key)}/rotate", body={"overlap": overlap})

    @call
    def revoke_key(self, key: str) -> Steps[None]:
        """Revoke an API key. It takes effect with the next request."""
        yield from exchange(self.url, request("DELETE", f"/v1/keys/{quoted(key)}"))
