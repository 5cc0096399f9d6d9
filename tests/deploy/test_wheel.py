"""A wheel contains every file of the service, including those that are not Python."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tools.checks import ROOT

PACKAGES = ("tuner", "trainables")


def test_wheel_contains_all_tracked_files_of_the_packages(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    listed = subprocess.run(
        ["git", "ls-files", "-z", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tracked = {name for name in listed.stdout.split("\0") if name}
    for name in (*tracked, "pyproject.toml", "README.md"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    # PyTorch requires a setuptools that is new enough for the build.
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", out, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = out.iterdir()
    contained = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(PACKAGES)}
    assert {name for name in contained if ".dist-info/" not in name} == tracked
