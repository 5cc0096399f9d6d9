"""Settings from the environment: read once when a process starts, immutable, and passed to the code that needs them."""

import ipaddress
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
# The values of TUNER_CLOUD: the cloud whose metadata service announces a preemption of this machine. `detect` finds out which cloud it is,
# and with `none` no metadata service is read.
CLOUDS = ("detect", "aws", "gcp", "azure", "none")
# The fsspec file systems that can store checkpoints. File systems that fetch from any host in the URL, such as http, are excluded.
STORAGES = ("file", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "hdfs")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a process: one field for each `TUNER_*` environment variable that docs/settings.md describes.

    `from_env` sets the defaults.
    """

    home: Path
    database_url: str = field(repr=False)
    storage: str
    database_url_file: str  #: The file that `database_url` was read from, or "".
    storage_region: str
    #: The directory of the cache of datasets on each worker machine. If it is empty, the machine's own setting applies.
    cache_dir: str
    #: Size limit in GiB of a worker machine's cache of datasets. If it is None, the machine's own setting applies.
    cache_gib: int | None
    data_region: str  #: The region of the buckets from which datasets come.
    storage_class: str
    storage_tags: str
    ray_address: str
    host: str
    port: int
    url: str  #: The URL at which clients reach the service.
    allowed_modules: tuple[str, ...]
    packages: bool
    package_mib: int  #: Size limit of an uploaded package, in MiB.
    #: Environment variables that user code may see. A trailing * matches any ending.
    pass_env: tuple[str, ...]
    max_processes: int  #: Most processes and threads of one attempt.
    max_open_files: int
    import_memory_gib: int  #: Memory limit, in GiB, when the service imports a trainable to inspect it.
    #: Price of a whole node in USD per hour, by instance type, or by `TYPE/spot` for spot nodes.
    node_prices: Mapping[str, float]
    #: The nodes that an autoscaler may start: the path of a file, or its content as JSON.
    node_types: str
    prices: str  #: The path of a CSV file that replaces the price catalogue.
    egress_usd_per_gb: Decimal | None
    storage_usd_per_gb_month: Decimal | None
    local_cpus: int | None
    local_gpus: int | None
    retention: str  #: The retention policy of jobs that set none, such as `best:30d`.
    slice_s: float  #: Seconds of work that one hold pays for.
    spot_wait_s: float  #: Seconds without a spot machine after which a trial falls back to on-demand.
    drain_s: float  #: Seconds for which the service still answers after SIGTERM.
    cloud: str
    metadata_url: str
    webhook_private: bool  #: Whether webhooks may go to private addresses and use http.
    webhook_hosts: tuple[str, ...]  #: Hosts that webhooks may go to even without `webhook_private`.
    rate_limit: int  #: Most requests per second with one API key.
    optuna_storage: str = field(repr=False)
    tensorboard: str
    mlflow_uri: str = field(repr=False)
    mlflow_experiment: str
    mlflow_register: bool
    #: For tests: the name of a commit. When the process reaches this commit, it ends as if it were killed.
    failpoint: str
    given_api_key: str | None = field(repr=False)
    project: str

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Read the settings from environment variables.

        Raises:
            ValueError: A variable has an invalid value. The message begins with the variable's name.
        """
        home = Path(environ.get("TUNER_HOME") or "~/.tuner").expanduser().absolute()
        host = environ.get("TUNER_HOST") or "127.0.0.1"
        port = _int(environ, "TUNER_PORT", 8000, 0, 65535)
        database_url, database_url_file = _database_url(environ, home)
        return cls(
            home=home,
            database_url=database_url,
            database_url_file=database_url_file,
            storage=_storage(environ.get("TUNER_STORAGE") or str(home / "storage")),
            storage_region=environ.get("TUNER_STORAGE_REGION", ""),
            cache_dir=_path(environ.get("TUNER_CACHE_DIR", "")),
            cache_gib=_int(environ, "TUNER_CACHE_GIB", None, 1, 1_000_000),
            data_region=environ.get("TUNER_DATA_REGION", ""),
            storage_class=environ.get("TUNER_STORAGE_CLASS", ""),
            storage_tags=environ.get("TUNER_STORAGE_TAGS", ""),
            ray_address=environ.get("TUNER_RAY_ADDRESS", ""),
            host=host,
            port=port,
            url=environ.get("TUNER_URL") or f"http://{_reachable(host)}:{port}",
            allowed_modules=_names(environ.get("TUNER_ALLOWED_MODULES") or "trainables"),
            packages=_one_of(environ, "TUNER_PACKAGES", ("off", "on")) == "on",
            package_mib=_int(environ, "TUNER_PACKAGE_MIB", 16, 1, 1024),
            pass_env=_variables(environ, "TUNER_PASS_ENV"),
            max_processes=_int(environ, "TUNER_MAX_PROCESSES", 4096, 16, 1_000_000),
            max_open_files=_int(environ, "TUNER_MAX_OPEN_FILES", 65_536, 64, 100_000_000),
            import_memory_gib=_int(environ, "TUNER_IMPORT_MEMORY_GIB", 8, 1, 10_000),
            node_prices=_prices(environ.get("TUNER_NODE_PRICES", "")),
            node_types=_path_or_text(environ.get("TUNER_NODE_TYPES", "")),
            prices=_path(environ.get("TUNER_PRICES", "")),
            egress_usd_per_gb=_usd(environ, "TUNER_EGRESS_USD_PER_GB"),
            storage_usd_per_gb_month=_usd(environ, "TUNER_STORAGE_USD_PER_GB_MONTH"),
            local_cpus=_int(environ, "TUNER_LOCAL_CPUS", None, 1, 10_000),
            local_gpus=_int(environ, "TUNER_LOCAL_GPUS", None, 0, 1000),
            retention=_retention(environ.get("TUNER_RETENTION") or "all"),
            slice_s=_seconds(environ, "TUNER_SLICE", 10.0),
            spot_wait_s=_seconds(environ, "TUNER_SPOT_WAIT", 60.0),
            drain_s=_seconds(environ, "TUNER_DRAIN", 0.0, 0),
            cloud=_one_of(environ, "TUNER_CLOUD", CLOUDS),
            metadata_url=_http_url(environ, "TUNER_METADATA_URL"),
            webhook_private=_one_of(environ, "TUNER_WEBHOOK_PRIVATE", ("refuse", "allow")) == "allow",
            webhook_hosts=_names(environ.get("TUNER_WEBHOOK_HOSTS", "").lower()),
            rate_limit=_int(environ, "TUNER_RATE_LIMIT", 1000, 1, 1_000_000),
            optuna_storage=_unless_off(environ.get("TUNER_OPTUNA_STORAGE") or f"sqlite:///{home}/optuna.db"),
            tensorboard=_path(environ.get("TUNER_TENSORBOARD", "")),
            mlflow_uri=environ.get("TUNER_MLFLOW_URI", ""),
            mlflow_experiment=environ.get("TUNER_MLFLOW_EXPERIMENT") or "tuner",
            mlflow_register=_one_of(environ, "TUNER_MLFLOW_REGISTER", ("off", "on")) == "on",
            failpoint=environ.get("TUNER_FAILPOINT", ""),
            given_api_key=visible("TUNER_API_KEY", environ.get("TUNER_API_KEY", "").strip()) or None,
            project=_project(environ.get("TUNER_PROJECT", "")),
        )

    @property
    def api_key_path(self) -> Path:
        return self.home / "api_key"

    @property
    def prices_path(self) -> Path:
        """The path of the file in which `tuner prices --update` stores the catalogue that replaces the shipped one."""
        return self.home / "prices.csv"

    @property
    def database_url_path(self) -> Path:
        """The path of the file from which drivers read the database URL if `passes_url_in_file` is true.

        If TUNER_DATABASE_URL_FILE is set, drivers read the file that the setting names. This file must exist on
        the head node of the cluster too. Otherwise drivers read a file in the home directory, which the service writes for
        drivers on this machine.
        """
        return Path(self.database_url_file) if self.database_url_file else self.home / "database_url"

    @property
    def passes_url_in_file(self) -> bool:
        """Whether drivers read the database URL from a file, and not from an environment variable, which other users could read.

        Only the URL of an SQLite database certainly has no password: that of PostgreSQL may also have one among its parameters.
        """
        return bool(self.database_url_file) or not self.database_url.startswith(("sqlite:", "sqlite+"))

    def api_key(self) -> str:
        """Return the API key: TUNER_API_KEY if set, otherwise the key stored in the home, which is created if it is missing."""
        if self.given_api_key:
            return self.given_api_key
        self.make_home()
        with suppress(FileExistsError):
            write_private(self.api_key_path, f"tk_{secrets.token_urlsafe(32)}\n")
        return self.api_key_path.read_text().strip()

    def make_home(self) -> None:
        """Create the home directory with mode 0700. An existing directory is left unchanged.

        Raises:
            ValueError: The directory cannot be created, or this user cannot write to it.
        """
        fix = "set TUNER_HOME to a directory that this user can create or write to"
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ValueError(f"TUNER_HOME: {self.home} cannot be created: {error.strerror}; {fix}") from error
        if not os.access(self.home, os.R_OK | os.W_OK | os.X_OK):
            raise ValueError(f"TUNER_HOME: this user cannot write to {self.home}; {fix}")


def release() -> str:
    """Return the installed version of tuner, or "unknown" if it runs from a source folder without being installed."""
    try:
        return version("tuner")
    except PackageNotFoundError:
        return "unknown"


def write_private(path: Path, text: str) -> None:
    """Create a file with mode 0600 atomically: other processes see the whole text or no file.

    Raises:
        FileExistsError: The file exists already.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    try:
        os.link(draft, path)
    finally:
        draft.unlink()


def visible(name: str, value: str) -> str:
    """Return a value that is sent in an HTTP header.

    Raises:
        ValueError: The value has a space or another character that is not visible ASCII. The message has the name and not the value,
            which may be a secret.
    """
    if all("!" <= character <= "~" for character in value):
        return value
    raise ValueError(
        f"{name} has a space or another character that is not visible ASCII, so it cannot be sent in an HTTP header; remove this character"
    )


def _unless_off(text: str) -> str:
    return "" if text == "off" else text


def _path(text: str) -> str:
    """Return a path as an absolute path, because processes that use it may have other working directories.

    An empty text is returned unchanged.
    """
    return str(Path(text).expanduser().absolute()) if text else ""


def _path_or_text(text: str) -> str:
    """Return the value of TUNER_NODE_TYPES: JSON is returned unchanged, and a path is returned as an absolute path.

    Users set the path of a file. The service passes the content of the file, which is JSON, to drivers in the same variable.
    """
    return text if text.startswith("{") else _path(text)


def _project(text: str) -> str:
    """Return the project name unchanged. Raise ValueError if it is not a valid name.

    Only lower-case letters, digits and `-` are allowed, because the name is sent in an HTTP header. The first character is not `-`. The
    maximum length is 63. An empty name means the default project.
    """
    if re.fullmatch(r"([a-z0-9][a-z0-9-]{0,62})?", text):
        return text
    raise ValueError(
        "TUNER_PROJECT is not a project name: use at most 63 lower-case letters, digits and -, a letter or digit first"
    )


def _storage(url: str) -> str:
    """Return the storage as an absolute path, or as a URL.

    Raise ValueError if the URL's scheme is not supported or the URL contains a password.
    """
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        return str(Path(url).expanduser().absolute())
    if scheme not in STORAGES:
        known = ", ".join(f"{known_scheme}://" for known_scheme in STORAGES)
        raise ValueError(
            f"TUNER_STORAGE: {scheme}:// is not a supported storage; set a directory, or a URL that begins with one of {known}"
        )
    if ":" in rest.partition("/")[0].rpartition("@")[0]:
        raise ValueError(
            "TUNER_STORAGE: the URL contains a password, which would be shown to users; remove the password, and provide credentials as the "
            "cloud's own tools expect them"
        )
    return url


def _database_url(environ: Mapping[str, str], home: Path) -> tuple[str, str]:
    """Return the database URL, and the path of the file that contains it. The path is "" if the URL was not read from a file."""
    if given := environ.get("TUNER_DATABASE_URL"):
        return given, ""
    if file := _path(environ.get("TUNER_DATABASE_URL_FILE", "")):
        try:
            url = Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "the file is not text"
            fix = "let this user read the file, or name another one"
            raise ValueError(f"TUNER_DATABASE_URL_FILE: {file} cannot be read: {why}; {fix}") from error
        if not url:
            raise ValueError(
                f"TUNER_DATABASE_URL_FILE: {file} is empty: write the URL of the database into it"
            )
        return url, file
    return f"sqlite:///{home}/tuner.db", ""


def _reachable(host: str) -> str:
    """Return the host at which a client on this machine reaches a server that listens on `host`."""
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _variables(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the names of environment variables that user code may see. They are listed in the environment variable `name`.

    Raise ValueError for variables of the service and of Ray, because they may contain secrets.
    """
    names = _names(environ.get(name, ""))
    for item in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", item):
            raise ValueError(
                f"{name}: {item!r} is not a variable name; write for example WANDB_API_KEY or HF_*"
            )
        if item.startswith(("TUNER_", "RAY_")):
            raise ValueError(
                f"{name}: {item!r} cannot be passed to user code: it may hold a secret of the service or of Ray; "
                "variables that begin with TUNER_USER_ are passed on without being named here"
            )
    return names


def _prices(text: str) -> dict[str, float]:
    """Parse node prices such as `local=0.10,local/spot=0.03`, in USD per hour of a whole node."""
    prices = {}
    for item in _names(text):
        name, equals, usd = item.partition("=")
        price = _number(usd)
        if not equals or price is None or not 0 <= price <= 100_000:
            raise ValueError(
                f"TUNER_NODE_PRICES: {item!r} is not a price; write type=dollars, such as local=0.10"
            )
        prices[name.strip()] = price
    return prices


def _one_of(environ: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = environ.get(name) or choices[0]
    if text not in choices:
        raise ValueError(f"{name}: {text!r} must be one of {', '.join(choices)}")
    return text


def _http_url(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "")
    if text and not text.startswith(("http://", "https://")):
        raise ValueError(f"{name}: {text!r} must begin with http:// or https://")
    return text


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _int(environ: Mapping[str, str], name: str, default: T, low: int, high: int) -> int | T:
    text = environ.get(name)
    if not text:
        return default
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ValueError(f"{name}: {text!r} must be a whole number from {low} to {high}")
    return int(text)


def _usd(environ: Mapping[str, str], name: str) -> Decimal | None:
    """Return the amount in dollars that the environment variable `name` contains, or None if it is not set.

    Raise ValueError unless the amount is from 0 to 1000 and has at most six decimals.
    """
    text = environ.get(name)
    if not text:
        return None
    try:
        exact: Decimal | None = Decimal(text)
    except InvalidOperation:
        exact = None
    if exact is None or not exact.is_finite() or not 0 <= exact <= 1000 or exact != round(exact, 6):
        raise ValueError(
            f"{name}: {text!r} must be dollars from 0 to 1000 with at most six decimals, such as 0.09"
        )
    return exact


def _retention(text: str) -> str:
    if re.fullmatch(r"(all|best|front|none)(:[1-9]\d{0,8}[smhd])?", text):
        return text
    raise ValueError(
        f"TUNER_RETENTION: {text!r} must be all, best, front or none, optionally with a time, such as best:30d"
    )


def _seconds(environ: Mapping[str, str], name: str, default: float, least: int = 1) -> float:
    text = environ.get(name)
    seconds = _number(text) if text else default
    if seconds is None or not least <= seconds <= 3600:
        raise ValueError(f"{name}: {text!r} must be a number of seconds from {least} to 3600")
    return seconds
