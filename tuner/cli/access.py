"""`tuner whoami`, `projects`, `users`, `members`, `keys` and `audit`: users, their access rights, and the log of changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tuner.cli import escape, tables
from tuner.cli.arguments import Json
from tuner.cli.command_group import CommandGroup
from tuner.cli.output import Output, connect
from tuner.cli.tables import Format, Style

if TYPE_CHECKING:
    from tuner.schemas.access import AuditEntry, Key, Member, Project, User, WhoAmI


User_ = Annotated[str, typer.Argument(metavar="USER", help="The user's name.", show_default=False)]
KeyId = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="The key's id, which is the beginning of the key: tnr_….", show_default=False
    ),
]
projects = CommandGroup("projects", help="Manage projects, each with its own jobs, budgets and members.")
users = CommandGroup("users", help="List, disable and enable users. Only for the operator.")
members = CommandGroup("members", help="Manage the project's members and their roles.")
keys = CommandGroup("keys", help="Manage the API keys of the project's members.")


def whoami(as_json: Json = False) -> None:
    """Show the user, project and role of the current key."""
    Output(as_json).show(connect().whoami(), _whoami)


@projects.add("list")
def list_projects(as_json: Json = False) -> None:
    """List projects: the operator sees all, other users see their own."""
    Output(as_json).show_all(list(connect().projects()), _projects)


@projects.add("show")
def show_project(
    name: Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show one project."""
    Output(as_json).show(connect().project(name), lambda project: _projects([project]))


@projects.add("add")
def add_project(
    name: Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Create a project. With the service's own key, use any command in it as `tuner --project PROJECT COMMAND`."""
    Output(as_json).show(connect().add_project(name), lambda project: _projects([project]))


@users.add("list")
def list_users(as_json: Json = False) -> None:
    """List the users of all projects."""
    Output(as_json).show_all(list(connect().users()), _users)


@users.add("disable")
def disable_user(user: User_, as_json: Json = False) -> None:
    """Disable a user: all of their keys are refused immediately, in every project."""
    Output(as_json).show(connect().disable_user(user), lambda disabled_user: _users([disabled_user]))


@users.add("enable")
def enable_user(user: User_, as_json: Json = False) -> None:
    """Re-enable a disabled user's API keys."""
    Output(as_json).show(
        connect().disable_user(user, disabled=False), lambda enabled_user: _users([enabled_user])
    )


@members.add("list")
def list_members(as_json: Json = False) -> None:
    """List the members of the project with their roles."""
    Output(as_json).show_all(list(connect().members()), _members)


@members.add("set")
def set_member(
    user: User_,
    role: Annotated[str, typer.Option(help="Role of the member: viewer, submitter or admin.")],
    as_json: Json = False,
) -> None:
    """Add a user to the project, or change a member's role."""
    Output(as_json).show(connect().put_member(user, role), lambda member: _members([member]))


@members.add("remove")
def remove_member(user: User_) -> None:
    """Remove a member and revoke all of their keys in the project."""
    connect().remove_member(user)


@keys.add("list")
def list_keys(as_json: Json = False) -> None:
    """List keys without their secrets: admins see all keys of the project, other users see their own."""
    Output(as_json).show_all(list(connect().keys()), _keys)


@keys.add("make")
def make_key(
    user: User_,
    name: Annotated[str, typer.Option(help="A name that says what the key is for.")],
    expires_in: Annotated[
        str, typer.Option(help="How long the key is valid, such as 30d; at most 366d.")
    ] = "90d",
    as_json: Json = False,
) -> None:
    """Create a key for a member. The whole key is shown only once."""
    Output(as_json).show(connect().make_key(user, name, expires_in=expires_in), _key)


@keys.add("rotate")
def rotate_key(
    key: KeyId,
    overlap: Annotated[str, typer.Option(help="How long the old key remains valid, from 0s to 24h.")] = "1h",
    as_json: Json = False,
) -> None:
    """Replace a key with a new one. The whole new key is shown only once."""
    Output(as_json).show(connect().rotate_key(key, overlap=overlap), _key)


@keys.add("revoke")
def revoke_key(key: KeyId) -> None:
    """Revoke a key immediately."""
    connect().revoke_key(key)


def _whoami(identity: WhoAmI) -> RenderableType:
    until = f", with {identity.key} until {escape.moment(identity.key_expires_at)}" if identity.key else ""
    return Text(f"{identity.user}, {identity.role} of {identity.project}{until}")


def _projects(items: Sequence[Project]) -> RenderableType:
    table = tables.plain("project", "since")
    for project in items:
        table.add_row(project.name, escape.moment(project.created_at))
    return table


def _users(items: Sequence[User]) -> RenderableType:
    table = tables.plain("user", "since", "disabled")
    for user in items:
        table.add_row(user.name, escape.moment(user.created_at), escape.moment(user.disabled_at))
    return table if items else Text("no users")


def _members(items: Sequence[Member]) -> RenderableType:
    table = tables.plain("user", "role", "since", "disabled")
    for member in items:
        disabled = "yes" if member.disabled else "-"
        table.add_row(member.user, member.role, escape.moment(member.since), disabled)
    return table if items else Text("no members")


def _keys(items: Sequence[Key]) -> RenderableType:
    table = tables.plain("key", "user", "for", "state", "made", "ends", "replaced by")
    for key in items:
        when = (escape.moment(key.created_at), escape.moment(key.revoked_at or key.expires_at))
        table.add_row(key.id, key.user, key.name, key.state, *when, key.replaced_by or "-")
    return table if items else Text("no keys")


def _key(key: Key) -> RenderableType:
    return Group(_keys([key]), Text(f"the key, which is shown only now: {key.secret}"))


def audit(
    user: Annotated[str | None, typer.Option(help="Only changes by this user.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this action, such as job.pause, budget.put or key.revoke.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Only changes to the job with this id, or to the budget, user, project or other object with this name."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only changes from this time on: a date in UTC, or a time with an offset."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="Only changes before this time: a date in UTC, or a time with an offset."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of changes to list.")] = 50,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """List who changed what in the project, newest first."""
    chosen = {"user": user, "action": action, "target": target, "since": since, "until": until}
    Output(as_json, style).show_all(list(connect().audit(**chosen, limit=limit)), _table)


def _table(items: Sequence[AuditEntry]) -> RenderableType:
    table = tables.plain("when", "who", "what", "of", "before", "after")
    for entry in items:
        when = f"{entry.at[:19]}Z".replace("T", " ")
        who = f"{entry.user} ({entry.key})" if entry.key else entry.user
        table.add_row(when, who, entry.action, entry.target, _facts(entry.before), _facts(entry.after))
    return table if items else Text("no changes")


def _facts(facts: dict[str, Any] | None) -> str:
    parts = (
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in (facts or {}).items()
    )
    return escape.harmless("  ".join(parts)) or "-"
