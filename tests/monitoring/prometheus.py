"""The shipped configuration of Prometheus, and promtool."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))


def promtool(*arguments: str | Path, cwd: Path = PROMETHEUS) -> str:
    """Return the output of promtool.

    Raises:
        AssertionError: promtool reports an error.
    """
    done = subprocess.run(["promtool", *map(str, arguments)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
