"""Run the notebook of the docs cell by cell in a Jupyter kernel, against a real service."""

from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from traitlets.config import Config

from tests.system.serving import TIMEOUT_S, Served
from tuner.cluster.launch import free_ports

pytestmark = [pytest.mark.system, pytest.mark.extended, pytest.mark.timeout(900)]
PORTS = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")
NOTEBOOK = Path(__file__).parents[2] / "docs/notebook.ipynb"


def shown(cell: Any) -> dict[str, str]:
    """Return the output of a cell by MIME type."""
    return {kind: text for output in cell["outputs"] for kind, text in output.get("data", {}).items()}


def test_notebook_runs_and_shows_a_table_and_a_plot(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_URL", served.client.url)
    monkeypatch.setenv("TUNER_HOME", str(served.home))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "no outputs are kept"
    place = {"metadata": {"path": str(tmp_path)}}
    limits = {"timeout": int(TIMEOUT_S), "startup_timeout": int(TIMEOUT_S)}
    own = {"cache_ports": False, **dict(zip(PORTS, free_ports(len(PORTS)), strict=True))}
    config = Config({"KernelManager": own})
    nbclient.NotebookClient(notebook, resources=place, config=config, **limits).execute()
    cells = {cell["id"]: cell for cell in notebook.cells if cell["cell_type"] == "code"}
    progress = shown({"outputs": cells["waiting"]["outputs"][:1]})["text/html"]
    assert progress.startswith("<progress")
    assert "succeeded" in progress, "what was drawn first is changed in place"
    assert "config.momentum" in shown(cells["table"])["text/html"]
    assert len(shown(cells["plot"])["image/png"]) > 10_000
    assert "learning_rate" in cells["best-config"]["outputs"][0]["text"]
