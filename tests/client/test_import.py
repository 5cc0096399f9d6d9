"""Importing the client imports nothing that it does not need."""

import subprocess
import sys

HEAVY = {"pandas", "matplotlib", "numpy", "IPython", "rich", "ray", "torch", "sqlalchemy", "fastapi", "typer"}
PROGRAM = "import sys; import tuner; before = set(sys.modules); from tuner import AsyncClient, Client; print(*before); print(*sys.modules)"


def test_importing_the_client_loads_no_unneeded_modules() -> None:
    """Importing `tuner` alone, as trainables do in every worker, does not import the client."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    alone, with_client = (set(line.split()) for line in done.stdout.splitlines())
    assert not {"tuner.client", "pydantic", "httpx2"} & alone
    assert not HEAVY & with_client
    assert not {"tuner.schemas.plan", "tuner.schemas.estimate_answers"} & with_client
    assert "tuner.client" in with_client
