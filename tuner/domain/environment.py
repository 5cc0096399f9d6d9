"""The environment of an attempt: the versions and settings that must be equal to repeat its training with the same result."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tuner.domain.text import storable

#: Limits on each mapping that a worker sends: the number of entries that are kept, and the length to which texts are cut.
MAX_ENTRIES, MAX_CHARACTERS = 50, 200
#: The variable that makes Python's hashes repeatable. It must be set before Python starts.
HASH_SEED = "PYTHONHASHSEED"
#: The names of the directories that contain installed distributions.
INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of an attempt. It is recorded once per attempt, and compared when the configuration is trained again."""

    threads: int | None = None  #: Threads of OpenMP, which PyTorch and NumPy use. None if no number was set.
    #: Seed of the random generators of Python, NumPy and PyTorch. None if they were not seeded.
    seed: int | None = None
    #: Versions by name: of `python` and of installed distributions.
    versions: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)  #: Environment variables that change results.
    code: str | None = None  #: Digest of the trainable's code. None if its module is not a file.

    @classmethod
    def parse(cls, sent: object) -> "Environment | None":
        """Return the environment from a worker's message or from the database. Return None if `sent` is not a mapping."""
        if not isinstance(sent, Mapping):
            return None
        return cls(
            threads=_whole(sent.get("threads")),
            seed=_whole(sent.get("seed")),
            versions=_texts(sent.get("versions")),
            variables=_texts(sent.get("variables")),
            code=sent["code"][:MAX_CHARACTERS] if isinstance(sent.get("code"), str) else None,
        )

    def message(self) -> dict[str, Any]:
        """Return the environment as a JSON-compatible dictionary, which `parse` reads."""
        return asdict(self)

    def with_seed(self, seed: int | None) -> "Environment":
        return replace(self, seed=seed)

    def differences(self, here: "Environment") -> list[str]:
        """Return one line for each difference between this recorded environment and the current one, `here`.

        Threads, seed and variables are compared too, because `tuner train` cannot set all of them to the recorded values.

        >>> Environment(versions={"torch": "2.13.0"}).differences(Environment(versions={"torch": "2.12.1"}))
        ['torch is 2.12.1 here; the trial ran with 2.13.0']
        """
        differences = []
        if self.threads is not None and self.threads != here.threads:
            differences.append(f"threads: {_shown(here.threads)} here; the trial ran with {self.threads}")
        if self.seed is not None and self.seed != here.seed:
            differences.append(f"seed: {_shown(here.seed)} here; the trial ran with {self.seed}")
        for name, version in self.versions.items():
            if here.versions.get(name) != version:
                differences.append(
                    f"{name} is {_shown(here.versions.get(name))} here; the trial ran with {version}"
                )
        for name in sorted({*self.variables, *here.variables}):
            then, now = self.variables.get(name), here.variables.get(name)
            if then != now:
                differences.append(f"{name} is {_shown(now)} here; the trial ran with {_shown(then)}")
        if self.code is not None and self.code != here.code:
            differences.append(
                f"the code has changed: its digest is {_digest(here.code)} here; the trial ran with {_digest(self.code)}"
            )
        return differences


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    texts = {
        storable(name, MAX_CHARACTERS): storable(text, MAX_CHARACTERS)
        for name, text in value.items()
        if isinstance(name, str) and isinstance(text, str)
    }
    return dict(list(texts.items())[:MAX_ENTRIES])


def _shown(value: object) -> str:
    return "not set" if value is None else str(value)


def _digest(code: str | None) -> str:
    return "unknown" if code is None else code[:12]
