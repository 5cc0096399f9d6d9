"""The rules as they are written, and Debian's tools that read them."""

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tuner.api.families import OF_PROCESS, OWN
from tuner.api.recorded import QUEUE_WAIT, RECORDED

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))
# Names that stand in an expression and are no metric of ours: those of labels are followed by an operator.
METRIC = re.compile(r"\b(?:tuner[_:][a-z0-9_:]+|process_[a-z_]+|python_[a-z_]+)\b")


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for file in RULES
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
    ]


def known() -> set[str]:
    """Every series that the service tells or a rule records."""
    families = [*(one for one, _ in RECORDED), *(one for one, _ in OF_PROCESS), *OWN, QUEUE_WAIT]
    found = {one.name for one in families} | {str(rule["record"]) for rule in rules() if "record" in rule}
    for one in families:
        if one.kind in ("histogram", "summary"):
            found |= {f"{one.name}_{part}" for part in ("count", "sum", "bucket")}
    process = ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds")
    return found | {f"process_{part}" for part in process}


def unknown_in(expr: str) -> set[str]:
    return set(METRIC.findall(expr)) - known()


def promtool(*arguments: str | Path, cwd: Path = PROMETHEUS) -> str:
    """What it says. Raises AssertionError where it finds fault."""
    done = subprocess.run(["promtool", *map(str, arguments)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
