"""Pack a folder as a package. The same files give the same bytes, at any time and on any machine."""

import io
import os
import zipfile
from pathlib import Path

LEFT_OUT = ("__pycache__", "node_modules", "venv")
BEGINNING = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can hold
PLAIN = 0o100644 << 16  # the mode of a regular file, in the upper half of a zip entry's external attributes


def packed(path: Path) -> tuple[str, bytes]:
    """Return the name and the bytes of a package.

    A .zip or .whl file is returned unchanged. A .py file or a folder is packed. A folder with an `__init__.py` is packed as a module,
    under its own name. The files of other folders are at the top of the package. `__pycache__`, `node_modules`, virtual environments,
    build results, and names that begin with a dot are omitted.

    Raises:
        OSError: A file cannot be read.
        ValueError: There is a symbolic link, or no .py file.
    """
    path = Path(os.path.abspath(path))
    if path.suffix in (".zip", ".whl"):
        return _name(path.stem), path.read_bytes()
    top = path.parent if path.is_file() or (path / "__init__.py").exists() else path
    files = [path] if path.is_file() else _files(path)
    if not any(file.suffix == ".py" for file in files):
        raise ValueError(f"{path} has no .py file: name a folder with Python, a .py file, a .zip or a .whl")
    return _name(path.stem), _zipped({file.relative_to(top).as_posix(): file for file in files})


def _files(folder: Path) -> list[Path]:
    found = []
    for parent, names, others in os.walk(folder):
        names[:] = [name for name in names if not _is_left_out(Path(parent, name))]
        for path in (Path(parent, name) for name in [*names, *others]):
            if path.is_symlink() and not _is_left_out(path):
                raise ValueError(f"{path} is a link: put in its place what it leads to, or leave it out")
        found += [path for name in others if not _is_left_out(path := Path(parent, name))]
    return found


def _is_left_out(path: Path) -> bool:
    name = path.name
    if name.startswith(".") or name in LEFT_OUT or name.endswith((".egg-info", ".pyc", ".pyo")):
        return True
    return path.is_dir() and (path / "pyvenv.cfg").exists()


def _zipped(files: dict[str, Path]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, BEGINNING)
            info.compress_type, info.external_attr, info.create_system = zipfile.ZIP_DEFLATED, PLAIN, 3
            archive.writestr(info, files[name].read_bytes())
    return data.getvalue()


def _name(stem: str) -> str:
    """Return a name that the service accepts: ASCII letters, digits, spaces, `.`, `_` and `-`, at most 100 characters."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in " ._-") else "-" for c in stem)
    return plain.lstrip(" ._-")[:100] or "package"
