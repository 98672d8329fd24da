"""The tutorial notebook runs from the first cell to the last, and shows what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "get-started" / "tutorial.ipynb"


def test_the_stored_notebook_has_no_outputs():
    cells = json.loads(TUTORIAL.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 8
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What each code cell shows, by its first line."""
    nbclient = pytest.importorskip("nbclient", reason='pip install ".[dev]"')
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class ThisPython(AsyncKernelManager):
        """The interpreter of the tests, whatever kernels are installed."""

        @property
        def kernel_spec(self):
            command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=command, display_name="tests", language="python")

    notebook = nbformat.read(TUTORIAL, as_version=4)
    place = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(place / "cache"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(place / "runtime"))
        patch.setenv("IPYTHONDIR", str(place / "ipython"))
        nbclient.NotebookClient(
            notebook,
            timeout=800,
            startup_timeout=300,
            kernel_manager_class=ThisPython,
            resources={"metadata": {"path": str(place)}},
        ).execute()
    return {
        cell.source.splitlines()[0]: cell.outputs
        for cell in notebook.cells
        if cell.cell_type == "code"
    }


def shown(cell, kind):
    return [output.data[kind] for output in cell if kind in output.get("data", {})]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_tutorial_runs_and_shows_tables_and_images(outputs):
    (data,) = shown(outputs['data = ogkd.read_dataset("chest")'], "text/plain")
    assert "170 images" in data
    assert "5 classes" in data
    *_, result = shown(outputs['result = ogkd.evaluate(model, data, split="test")'], "text/plain")
    assert "Evaluation on 30 images" in result
    (abstained,) = (cell for line, cell in outputs.items() if line.startswith("files = "))
    assert "of 30 images go to a specialist" in abstained[0].text
    assert not abstained[0].text.startswith("0 of")
    assert shown(outputs["ogkd.explain(model, files[0])[0]"], "image/png")
    (said,) = (cell for line, cell in outputs.items() if line.startswith("print(f"))
    assert "95 % interval" in said[0].text
    assert "Its most frequent errors" in said[0].text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_progress_leaves_single_lines_and_no_noise(outputs):
    for cell in outputs.values():
        words = [output["text"] for output in cell if output.get("name") == "stderr"]
        assert all(line.startswith("Note: ") for line in "".join(words).splitlines())
        for page in shown(cell, "text/html"):
            assert "<progress" not in page
