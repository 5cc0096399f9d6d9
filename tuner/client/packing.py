"""Pack a folder or a function as a package. The same files give the same bytes, at any time and on any machine."""

import inspect
import io
import keyword
import os
import sys
import zipfile
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

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
        raise ValueError(
            f"{path} has no .py file: name a folder with .py files, a .py file, a .zip or a .whl"
        )
    return _name(path.stem), _zipped({file.relative_to(top).as_posix(): file.read_bytes() for file in files})


def _files(folder: Path) -> list[Path]:
    paths = []
    for parent, names, others in os.walk(folder):
        names[:] = [name for name in names if not _is_left_out(Path(parent, name))]
        for path in (Path(parent, name) for name in [*names, *others]):
            if path.is_symlink() and not _is_left_out(path):
                raise ValueError(f"{path} is a link: replace it with its target, or leave it out")
        paths += [path for name in others if not _is_left_out(path := Path(parent, name))]
    return paths


def _is_left_out(path: Path) -> bool:
    name = path.name
    if name.startswith(".") or name in LEFT_OUT or name.endswith((".egg-info", ".pyc", ".pyo")):
        return True
    return path.is_dir() and (path / "pyvenv.cfg").exists()


def _zipped(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, BEGINNING)
            info.compress_type, info.external_attr, info.create_system = zipfile.ZIP_DEFLATED, PLAIN, 3
            archive.writestr(info, files[name])
    return data.getvalue()


def _name(stem: str) -> str:
    """Turn a file's name into a package name that the service accepts: at most 100 ASCII letters, digits, spaces, `.`, `_` and `-`."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in " ._-") else "-" for c in stem)
    return plain.lstrip(" ._-")[:100] or "package"


@dataclass(frozen=True, slots=True)
class PackedFunction:
    """A function that was packed as a package."""

    name: str  #: The name of the package.
    entry: str  #: The trainable, `module:function`.
    data: bytes


# The source of a packed function's module. It imports the modules that the function uses, so that a worker loads them once for all attempts.
# Importing it does not unpickle the function; only a call of the function does. The service inspects the module without such a call.
MODULE = '''"""The function `{name}`, pickled by value by the Python client of tuner."""

import pickle
import sys
from pathlib import Path

if sys.version_info[:2] != {version}:
    raise ImportError("{name} was pickled by Python {version[0]}.{version[1]}, and only that version can load it; submit the function again with the Python version of the service")

{imports}


def {name}(config):
    return pickle.loads(Path(__file__).with_suffix(".pickle").read_bytes())(config)

{source}'''


def packed_function(function: Callable[..., Any]) -> PackedFunction:
    """Pack a function as a package. It is pickled by value, with the functions, classes and global values of its own module that it uses.

    Other modules that the function imports are not packed.

    Raises:
        ValueError: It is not a plain function, or something that it uses cannot be pickled.
    """
    name = getattr(function, "__name__", "")
    if not inspect.isfunction(function) or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(
            f"{name or function!r} is not a function with a name; define it with def, or upload its file and name it as module:function"
        )
    pickled, modules = _by_value(function)
    try:
        source = "".join(f"# {line}\n" for line in inspect.getsource(function).splitlines())
    except (OSError, TypeError):  # a function that was typed into an interpreter has no source
        source = ""
    text = MODULE.format(
        name=name,
        version=tuple(sys.version_info[:2]),
        imports="\n".join(f"import {module}  # noqa: F401" for module in sorted(modules | {"cloudpickle"})),
        source=source and f"\n# Its source, to read and not to run:\n#\n{source}",
    )
    files = {f"pickled_{name}.py": text.encode(), f"pickled_{name}.pickle": pickled}
    return PackedFunction(_name(name), f"pickled_{name}:{name}", _zipped(files))


def _by_value(function: Callable[..., Any]) -> tuple[bytes, Set[str]]:
    """Return a pickled function, and the modules that must be importable where it is unpickled."""
    import cloudpickle

    modules = set[str]()

    def note(module: str, imported: str) -> None:
        if not f"{module}.".startswith(
            f"{function.__module__}."
        ):  # the function's own module is pickled by value
            modules.add(imported)

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        """A pickler that records the modules of everything that is pickled by name. A worker must be able to import these modules."""

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, ModuleType):
                note(value.__name__, value.__name__)
            elif inspect.isroutine(value) or inspect.isclass(value):
                module = str(value.__module__)
                note(module, module.partition(".")[0])
            return super().reducer_override(value)

    own = sys.modules.get(function.__module__)
    is_named = own is not None and own.__name__ != "__main__"
    if is_named:
        cloudpickle.register_pickle_by_value(own)
    data = io.BytesIO()
    try:
        Pickler(data).dump(function)
    except Exception as error:  # `__reduce__` of any object may raise anything
        raise ValueError(
            f"{function.__name__} uses an object that cannot be pickled: {error}; create the object inside the function"
        ) from error
    finally:
        if is_named:
            cloudpickle.unregister_pickle_by_value(own)
    return data.getvalue(), modules - {"__main__", "None", "builtins"}
