"""`tuner packages`: uploaded packages of trainables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from tuner.cli import tables
from tuner.cli.arguments import Json
from tuner.cli.output import Frame, connect, with_problems

if TYPE_CHECKING:
    from tuner.schemas.packages import Package

packages = typer.Typer(
    no_args_is_help=True, help="Manage uploaded packages of trainables, if the operator allows them."
)


@packages.command("push")
@with_problems
def push(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder, .py file, .zip or .whl to upload.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the package. Default: the name of the path.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Upload a package and print its id, which a job names as `package:`. Uploading the same files again returns the same package."""
    Frame(as_json).show(connect().upload(path, name=name), lambda one: Text(one.id))


@packages.command("list")
@with_problems
def list_packages(as_json: Json = False) -> None:
    """List all packages, newest first."""
    Frame(as_json).show_all(list(connect().packages()), _table)


@packages.command("show")
@with_problems
def show_package(
    package: Annotated[str, typer.Argument(metavar="PACKAGE", help="The package's id.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show one package."""
    Frame(as_json).show(connect().package(package), lambda one: _table([one]))


def _table(found: Sequence[Package]) -> RenderableType:
    table = tables.plain("package", "name", "files", "bytes", "uploaded")
    for one in found:
        when = f"{one.created_at[:16]}Z".replace("T", " ")
        table.add_row(one.id, one.name, str(one.files), str(one.bytes), when)
    return table if found else Text("no packages")
