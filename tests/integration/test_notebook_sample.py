"""The notebook among the samples runs from top to bottom, in a kernel of its own."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "deploy" / "samples" / "quickstart.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_notebook_runs_and_trains(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    report = tmp_path / "build/notebook/latest/report.html"
    assert report.is_file()
    metrics = _last_result(notebook.cells[6])
    assert "eval_auc" in metrics


def _last_result(cell: nbformat.NotebookNode) -> str:
    results = [out for out in cell.outputs if out.output_type == "execute_result"]
    return str(results[-1].data["text/plain"])
