"""Read the files of deploy/ as the programs that use them do."""

import configparser
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONSTRAINTS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
)
TEXTS = {".yaml", ".yml", ".sh", ".env", ".service", ".sbatch", ".md", ""}


def texts() -> Iterator[tuple[Path, str]]:
    for path in sorted(DEPLOY.rglob("*")):
        if path.is_file() and path.suffix in TEXTS and path.name != ".env":
            yield path, path.read_text()


def scripts() -> list[Path]:
    return [path for path, text in texts() if text.startswith(("#!/bin/sh", "#!/bin/bash"))]


def labels_of(words: str) -> dict[str, str]:
    """Return the labels of `--labels=a=b,c=d`."""
    return dict(pair.split("=", 1) for pair in words.removeprefix("--labels=").split(","))


def unit(path: Path) -> configparser.SectionProxy:
    """Return the section `[Service]` of a unit of systemd."""
    # Keys such as Environment may occur several times.
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return parser["Service"]
