"""`tuner whoami`, `projects`, `users`, `members` and `keys`: who may do what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tuner.cli import tables
from tuner.cli.arguments import Json
from tuner.cli.frame import Frame, connect, with_problems

if TYPE_CHECKING:
    from tuner.schemas.access import Key, Member, Project, User, WhoAmI

User_ = Annotated[str, typer.Argument(metavar="USER", help="The user's name.", show_default=False)]
KeyId = Annotated[
    str, typer.Argument(metavar="KEY", help="What the key begins with: tnr_….", show_default=False)
]
projects = typer.Typer(
    no_args_is_help=True, help="Manage projects, each with its own jobs, budgets and members."
)
users = typer.Typer(no_args_is_help=True, help="List and disable users, as the operator.")
members = typer.Typer(no_args_is_help=True, help="Manage the project's members and their roles.")
keys = typer.Typer(no_args_is_help=True, help="Manage API keys of the project's members.")


@with_problems
def whoami(as_json: Json = False) -> None:
    """Show the user, project and role of the current key."""
    Frame(as_json).show(connect().whoami(), _whoami)


@projects.command("list")
@with_problems
def list_projects(as_json: Json = False) -> None:
    """All projects for the operator, for others their own."""
    Frame(as_json).show_all(list(connect().projects()), _projects)


@projects.command("show")
@with_problems
def show_project(
    name: Annotated[str, typer.Argument(metavar="PROJECT", help="Its name.", show_default=False)],
    as_json: Json = False,
) -> None:
    """One project."""
    Frame(as_json).show(connect().project(name), lambda one: _projects([one]))


@projects.command("add")
@with_problems
def add_project(
    name: Annotated[str, typer.Argument(metavar="PROJECT", help="Its name.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Make a project. The operator works in it with `tuner --project PROJECT`."""
    Frame(as_json).show(connect().add_project(name), lambda one: _projects([one]))


@users.command("list")
@with_problems
def list_users(as_json: Json = False) -> None:
    """The users of all projects."""
    Frame(as_json).show_all(list(connect().users()), _users)


@users.command("disable")
@with_problems
def disable_user(user: User_, as_json: Json = False) -> None:
    """Refuse all keys of a user at once, in every project."""
    Frame(as_json).show(connect().disable_user(user), lambda one: _users([one]))


@users.command("enable")
@with_problems
def enable_user(user: User_, as_json: Json = False) -> None:
    """Take the keys of a user again."""
    Frame(as_json).show(connect().disable_user(user, disabled=False), lambda one: _users([one]))


@members.command("list")
@with_problems
def list_members(as_json: Json = False) -> None:
    """The members of the project, with their roles."""
    Frame(as_json).show_all(list(connect().members()), _members)


@members.command("set")
@with_problems
def set_member(
    user: User_,
    role: Annotated[str, typer.Option(help="viewer, submitter or admin.")],
    as_json: Json = False,
) -> None:
    """Take a user into the project, or give a member another role."""
    Frame(as_json).show(connect().put_member(user, role), lambda one: _members([one]))


@members.command("remove")
@with_problems
def remove_member(user: User_) -> None:
    """Remove a member, and revoke all keys of theirs in the project."""
    connect().remove_member(user)


@keys.command("list")
@with_problems
def list_keys(as_json: Json = False) -> None:
    """All keys of the project for its admins, for others their own; none is shown whole."""
    Frame(as_json).show_all(list(connect().keys()), _keys)


@keys.command("make")
@with_problems
def make_key(
    user: User_,
    name: Annotated[str, typer.Option(help="What it is for.")],
    expires_in: Annotated[str, typer.Option(help="How long it lives, such as 30d; at most 366d.")] = "90d",
    as_json: Json = False,
) -> None:
    """Make a key for a member. It is shown whole only now."""
    Frame(as_json).show(connect().make_key(user, name, expires_in=expires_in), _key)


@keys.command("rotate")
@with_problems
def rotate_key(
    key: KeyId,
    overlap: Annotated[str, typer.Option(help="How long the one before goes on, from 0s to 24h.")] = "1h",
    as_json: Json = False,
) -> None:
    """Make another key in its stead, shown whole only now."""
    Frame(as_json).show(connect().rotate_key(key, overlap=overlap), _key)


@keys.command("revoke")
@with_problems
def revoke_key(key: KeyId) -> None:
    """Revoke a key: the next request with it is refused."""
    connect().revoke_key(key)


def _whoami(one: WhoAmI) -> RenderableType:
    until = f", with {one.key} until {_when(one.key_expires_at)}" if one.key else ""
    return Text(f"{one.user}, {one.role} of {one.project}{until}")


def _projects(found: Sequence[Project]) -> RenderableType:
    table = tables.plain("project", "since")
    for one in found:
        table.add_row(one.name, _when(one.created_at))
    return table


def _users(found: Sequence[User]) -> RenderableType:
    table = tables.plain("user", "since", "disabled")
    for one in found:
        table.add_row(one.name, _when(one.created_at), _when(one.disabled_at))
    return table if found else Text("no users")


def _members(found: Sequence[Member]) -> RenderableType:
    table = tables.plain("user", "role", "since", "disabled")
    for one in found:
        table.add_row(one.user, one.role, _when(one.since), "yes" if one.disabled else "-")
    return table if found else Text("no members")


def _keys(found: Sequence[Key]) -> RenderableType:
    table = tables.plain("key", "user", "for", "state", "made", "ends", "replaced by")
    for one in found:
        when = (_when(one.created_at), _when(one.revoked_at or one.expires_at))
        table.add_row(one.id, one.user, one.name, one.state, *when, one.replaced_by or "-")
    return table if found else Text("no keys")


def _key(one: Key) -> RenderableType:
    return Group(_keys([one]), Text(f"the key, which is shown only now: {one.secret}"))


def _when(at: str | None) -> str:
    return "-" if at is None else f"{at[:16]}Z".replace("T", " ")
