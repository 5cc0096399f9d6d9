"""`tuner backup` and `tuner restore`: the database in a file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.frame import Frame, with_problems
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.service.backup import BackedUp
    from tuner.service.restore import PausedJob, Restored

SHOWN = 10
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@with_problems
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; it must not be there yet.")],
    as_json: Json = False,
) -> None:
    """Back up the database into one file while jobs run. Checkpoints stay in the storage."""
    from tuner.service import backup as its  # the parts of a service, which other commands need not wait for

    Frame(as_json).show(its.backup(Settings.from_env(), file), _backed_up)


@with_problems
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `tuner backup` has written.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of a database that has jobs.")
    ] = False,
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
    lines = [f"{found.jobs} jobs are back, as they were at {found.taken_at}"]
    if found.revision_before != found.revision:
        lines.append(f"the database was brought from revision {found.revision_before} to {found.revision}")
    if found.kept:
        lines.append(f"the damaged database is kept as {found.kept}")
    lines += _some("the backup knows nothing of these, which the replaced database had", found.gone)
    lines += _some("the storage does not have these checkpoints; trials go on from older ones", found.missing)
    if found.storage_fault:
        lines.append(f"checkpoints could not be looked for: {found.storage_fault}")
    if found.paused:
        lines += ["", "These jobs were not over, and are paused. What they held then counts as spent:"]
        lines += [_paused(one) for one in found.paused]
        lines.append("Start the service; `tuner resume JOB` lets one go on, `tuner cancel JOB` ends it.")
    return "\n".join(lines)


def _some(what: str, names: tuple[str, ...]) -> list[str]:
    if not names:
        return []
    more = [f"  … and {len(names) - SHOWN} more; --json has all"] if len(names) > SHOWN else []
    return [f"{what}:", *(f"  {name}" for name in names[:SHOWN]), *more]


def _paused(one: PausedJob) -> str:
    since = (
        "was spent since, and counts as lost"
        if one.exact
        else "may have been spent since, and is off its budget"
    )
    held = f"held ${one.settled_usd:.6f}"
    return f"  {one.id}  {one.name}  was {one.state_before}, {held}; ${one.since_usd:.6f} {since}"
