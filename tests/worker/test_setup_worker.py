"""Test that the program that starts Ray's workers does what Ray's own does, without importing Ray."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tuner.cluster as ray_cluster

OURS = str(Path(str(ray_cluster.__file__)).with_name("setup_worker.py"))
ENVIRONMENT = {
    "TUNER_STORAGE": "s3://a bucket/it's 'quoted'",
    "PATH": "/first:${PATH}",
    "PYTHONPATH": "/code",
    "HAS_UNKNOWN": "a${NO_SUCH_VARIABLE}b",
    "DOLLARS": "$5 and $HOME",
}
WORKER = "import json, os, sys\nprint(json.dumps([sys.argv, dict(os.environ), 'ray' in sys.modules]))\n"


def started(program: str, worker: Path, context: dict[str, Any], language: str = "PYTHON") -> tuple[Any, ...]:
    """Return what a worker sees that the program starts: its arguments and environment."""
    own = [f"--language={language}", f"--serialized-runtime-env-context={json.dumps(context)}"]
    words = [sys.executable, program, str(worker), "--node-id=a b", "--webui=", *own, "--it's"]
    answer = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**os.environ, "HOME": "/h"}
    )
    arguments, environment, _ = json.loads(answer.stdout)
    return arguments, {name: environment.get(name) for name in (*ENVIRONMENT, "HOME", "WRAPPED")}


def ray_program() -> str:
    spec = importlib.util.find_spec("ray._private.workers")
    assert spec is not None
    assert spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0]) / "setup_worker.py")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="variables only"),
        # Ray's own program does the work.
        pytest.param(
            {"command_prefix": ["WRAPPED=yes"]}, id="more than variables", marks=pytest.mark.extended
        ),
    ],
)
def test_worker_starts_with_the_same_arguments_and_environment_as_in_ray(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    usual = {"command_prefix": [], "override_worker_entrypoint": None, "java_jars": []}
    context = {**usual, "env_vars": ENVIRONMENT, "py_executable": sys.executable, **more}
    arguments, environment = started(OURS, worker, context)
    assert (arguments, environment) == started(ray_program(), worker, context)
    assert arguments == [str(worker), "--node-id=a b", "--webui=", "--it's"]
    assert environment["WRAPPED"] == ("yes" if more else None)


def test_worker_start_imports_no_ray_module(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("")
    words = [sys.executable, "-X", "importtime", OURS, str(worker), "--language=PYTHON"]
    seen = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    assert "json" in seen
    assert " ray" not in seen
