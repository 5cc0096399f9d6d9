"""Collect the reference pages by file name."""

import re
from pathlib import Path

from tools.reference import cli, job_file, python, rest

FOLDER = Path(__file__).parents[2] / "docs/reference"


def made() -> dict[str, str]:
    pages = {"cli.md": cli, "rest.md": rest, "python.md": python, "job-file.md": job_file}
    return {name: _tidy(page.page()) for name, page in pages.items()}


def _tidy(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip() + "\n"
