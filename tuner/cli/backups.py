"""`tuner backup` and `tuner restore`: write the database to a file, and read it back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.output import Frame, with_problems
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.service.backup import BackedUp
    from tuner.service.restore import PausedJob, Restored

SHOWN = 10
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@with_problems
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write. It must not exist.")],
    as_json: Json = False,
) -> None:
    """Back up the database into one file while jobs run. Checkpoints stay in the storage."""
    from tuner.service import backup as its  # imported late because it is slow

    Frame(as_json).show(its.backup(Settings.from_env(), file), _backed_up)


@with_problems
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `tuner backup` wrote.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a database that has jobs.")] = False,
    as_json: Json = False,
) -> None:
    """Restore the database from a backup while no service runs. Unfinished jobs are paused."""
    from tuner.service import restore as its

    Frame(as_json).show(its.restore(Settings.from_env(), file, replace=replace), _restored)


def _backed_up(found: BackedUp) -> str:
    return (
        f"{found.file}: {found.jobs} jobs, {found.bytes / 1e6:.1f} MB, {found.kind} at revision {found.revision}, "
        f"of {found.taken_at}"
    )


def _restored(found: Restored) -> str:
    lines = [f"{found.jobs} jobs were restored to their state at {found.taken_at}"]
    if found.revision_before != found.revision:
        lines.append(f"the database was migrated from revision {found.revision_before} to {found.revision}")
    if found.kept:
        lines.append(f"the damaged database is kept as {found.kept}")
    lines += _some("these are not in the backup but were in the replaced database", found.gone)
    lines += _some(
        "the storage does not have these checkpoints; trials continue from older ones", found.missing
    )
    if found.storage_fault:
        lines.append(f"the storage could not be searched for checkpoints: {found.storage_fault}")
    if found.paused:
        lines += [
            "",
            "These jobs had not ended and are now paused. Their holds at the time of the backup count as spent:",
        ]
        lines += [_paused(one) for one in found.paused]
        lines.append(
            "Start the service, then continue a job with `tuner resume JOB` or end it with `tuner cancel JOB`."
        )
    return "\n".join(lines)


def _some(what: str, names: tuple[str, ...]) -> list[str]:
    if not names:
        return []
    more = [f"  … and {len(names) - SHOWN} more; --json lists all"] if len(names) > SHOWN else []
    return [f"{what}:", *(f"  {name}" for name in names[:SHOWN]), *more]


def _paused(one: PausedJob) -> str:
    since = (
        "was spent after the backup and counts as lost"
        if one.exact
        else "may have been spent after the backup and is taken off its budget"
    )
    held = f"held ${one.settled_usd:.6f}"
    return f"  {one.id}  {one.name}  was {one.state_before}, {held}; ${one.since_usd:.6f} {since}"
