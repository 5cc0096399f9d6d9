"""Store, list and check packages: archives with trainables that users upload. A job names the package that it uses."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.checkpoints.storage import explained
from tuner.database.database import Connection
from tuner.domain.errors import BadFile, Conflict, Fault, Invalid, NotFound, Unavailable
from tuner.domain.ids import NAME, PACKAGE_ID, package_id
from tuner.domain.job import JobSpec, entry_faults
from tuner.domain.text import nearest, suggested
from tuner.domain.units import MIB
from tuner.service import audit_log, trainables
from tuner.service.bootstrap import Service
from tuner.service.trainables import Described, command_faults
from tuner.settings import Settings
from tuner.store import packages
from tuner.store.packages import PackageRow
from tuner.worker.packages import PackageContents, Stored, check_tops, read_archive, unpack
from tuner.worker.scratch import Scratch

UNPACKED = 10  # limit of the unpacked size, as a multiple of the packed size
OFF = (
    "packages are disabled here; to allow them, the operator sets TUNER_PACKAGES=on and restarts the service"
)
SHOWN = 20


def check_on(settings: Settings) -> None:
    """Raise Conflict if packages are switched off."""
    if not settings.packages:
        raise Conflict(OFF)


def most_bytes(settings: Settings) -> int:
    return settings.package_mib * MIB


def put(service: Service, data: bytes, name: str | None) -> tuple[PackageRow, bool]:
    """Store a package. Return it and whether it is new.

    A package that is already known is written to the storage again, in case it was lost or changed there.

    Args:
        name: The name that the user gave. If it is None, the name is derived from the content.

    Raises:
        Conflict: Packages are switched off.
        BadFile: The package is too large or not valid.
        Invalid: The name is not valid.
        Unavailable: The storage does not accept the package.
    """
    check_on(service.settings)
    if len(data) > most_bytes(service.settings):
        mib = service.settings.package_mib
        raise BadFile(
            f"the package has more than {mib} MiB: leave out data files, or ask the operator to raise TUNER_PACKAGE_MIB"
        )
    if name is not None and not NAME.fullmatch(name):
        detail = (
            "use 1 to 100 letters, digits, spaces, dots, dashes and underscores; begin with a letter or digit"
        )
        raise Invalid.at("name", detail)
    contents = read_archive(data, most_bytes=UNPACKED * most_bytes(service.settings))
    check_tops(contents.digests)
    digest, package_name = hashlib.sha256(data).hexdigest(), name or _name_of(contents)
    new = PackageRow(digest, package_name, len(data), len(contents.digests), service.now())
    try:
        _stored(service, package_id(digest)).put(data)
    except Exception as error:  # every storage backend raises its own error types
        raise Unavailable(f"the package could not be stored: {explained(error)}") from error
    with service.database.write("package.put") as db:
        row, is_new = packages.put(db, service.project, new)
        if is_new:
            facts = {"name": row.name, "bytes": row.size_bytes, "files": row.files}
            audit_log.note(db, service, "package.put", row.id, after=facts)
    return row, is_new


def get(service: Service, name: str) -> PackageRow:
    """Return a package by its id.

    Raises:
        Conflict: Packages are switched off.
        NotFound: The package does not exist.
    """
    check_on(service.settings)
    row = _find(service, name)
    if row is None:
        raise NotFound(f"the package {name!r} does not exist{_nearest(service, name)}")
    return row


def page(service: Service, *, before: tuple[int, str] | None, limit: int) -> list[PackageRow]:
    """Return a page of the project's packages, newest first. Raise Conflict if packages are switched off.

    Args:
        before: `(created_at, sha256)` of the last package of the previous page. None means the first page.
        limit: The largest number of packages on the page.
    """
    check_on(service.settings)
    with service.database.read() as db:
        return packages.page(db, service.project, before=before, limit=limit)


def faults(service: Service, spec: JobSpec) -> list[Fault]:
    """Return the faults of the package that a job names, and of the job's trainable or command in that package."""
    name = spec.package or ""
    if not service.settings.packages:
        return [Fault("/package", OFF)]
    if _find(service, name) is None:
        return [Fault("/package", f"the package {name!r} does not exist{_nearest(service, name)}")]
    try:
        with _unpacked(service, name) as folder:
            if spec.command is not None:
                return command_faults(spec.command, [str(folder)], where=f"the package {name}")
            missing = _missing(folder, spec.trainable)
            error = missing or service.prober.describe(spec.trainable, folder).error
    except BadFile as lost:
        return [Fault("/package", lost.detail)]
    return [Fault("/trainable", f"cannot be trained: {error}")] if error else []


def described(service: Service, entry: str, package: str | None, kind: str) -> Described:
    """Describe the trainable `entry` of a package, or of this machine if `package` is None.

    If `kind` is `optuna`, the objective is run and its search space is recorded.

    Raises:
        Conflict: Packages are switched off, and `package` or `kind` is given. Recording a search space (`kind`) requires packages to be
            switched on too, because it runs more code than an import does.
        NotFound: The package does not exist.
        Invalid: `entry` is not written as `module:function`, or its module is not allowed here.
        BadFile: The package was lost or changed in the storage.
    """
    # A package is code that the operator has not installed, and recording a search space runs more code than an import does.
    # Both are therefore possible only if packages are switched on.
    if package is not None or kind:
        check_on(service.settings)
    if package is None:
        return trainables.described(service.prober, entry, service.settings.allowed_modules, kind)
    if wrong := entry_faults(entry):
        raise Invalid(*wrong)
    get(service, package)
    with _unpacked(service, package) as folder:
        missing = _missing(folder, entry)
        return (
            Described(entry, error=missing) if missing else service.prober.describe(entry, folder, kind=kind)
        )


def versions_of(db: Connection, project: str, name: str | None) -> frozenset[str | None]:
    """Return the ids of all packages with the name that the package `name` has, including its own id.

    Their code is taken to be versions of the same code. For None, which stands for the code of this machine, return only None.
    """
    if name is None or not PACKAGE_ID.fullmatch(name):
        return frozenset([name])
    digests = packages.versions(db, project, name.removeprefix("pkg_"))
    return frozenset([name, *map(package_id, digests)])


def all_versions(db: Connection, project: str) -> dict[str, frozenset[str | None]]:
    """Return for each package of the project, by its id, what `versions_of` returns."""
    of_name: dict[str, set[str | None]] = {}
    names = packages.names(db, project)
    for sha256, name in names.items():
        of_name.setdefault(name, set()).add(package_id(sha256))
    versions = {name: frozenset(ids) for name, ids in of_name.items()}
    return {package_id(sha256): versions[name] for sha256, name in names.items()}


def _stored(service: Service, name: str) -> Stored:
    return Stored(service.settings.storage, service.project, name)


def _find(service: Service, name: str) -> PackageRow | None:
    if not PACKAGE_ID.fullmatch(name):
        return None
    with service.database.read() as db:
        return packages.get(db, service.project, name.removeprefix("pkg_"))


@contextmanager
def _unpacked(service: Service, name: str) -> Iterator[Path]:
    """Fetch and unpack a package, and yield its folder. The folder is removed when the block ends.

    Raises:
        BadFile: The package is missing from the storage, was changed there, or contains something that packages must not contain.
        Unavailable: The package cannot be read or unpacked for another reason.
    """
    scratch = Scratch("package")
    try:
        try:
            folder = unpack(_stored(service, name), scratch.path)
        except BadFile:
            raise
        except Exception as error:  # every storage backend raises its own error types
            raise Unavailable(f"the package {name} cannot be read: {explained(error)}") from error
        yield folder
    finally:
        scratch.close()


def _missing(folder: Path, entry: str) -> str | None:
    """Return an error text if a package does not contain the module of the trainable `entry`, or None if it does."""
    module = entry.partition(":")[0]
    base = folder.joinpath(*module.split("."))
    if base.with_suffix(".py").is_file() or (base / "__init__.py").is_file():
        return None
    there = sorted(_module(path.relative_to(folder)) for path in folder.rglob("*.py"))
    return f"the package has no module {module}; {suggested(nearest(module, there), there[:3])}"


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _nearest(service: Service, name: str) -> str:
    with service.database.read() as db:
        package_rows = packages.page(db, service.project, before=None, limit=SHOWN)
    if not package_rows:
        return "; upload a package with `tuner packages push PATH`"
    ids = [row.id for row in package_rows]
    near = nearest(name, ids, 1) or [row.id for row in package_rows if row.name == name]
    words = {row.id: f"{row.id} ({row.name})" for row in package_rows}
    return f"; {suggested([words[near_id] for near_id in near], [words[id_] for id_ in ids[:3]])}"


def _name_of(contents: PackageContents) -> str:
    """Return a name for a package: the name and version of a wheel, otherwise the name of a top-level module or folder.

    Return "package" if none is found, or if the name has characters that names must not have.
    """
    tops = sorted({name.partition("/")[0] for name in contents.digests})
    wheel = next((top.removesuffix(".dist-info") for top in tops if top.endswith(".dist-info")), None)
    plain = wheel or next(
        (top.removesuffix(".py") for top in tops if "." not in top or top.endswith(".py")), ""
    )
    return plain if NAME.fullmatch(plain) else "package"
