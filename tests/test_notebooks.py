"""The notebooks of the documentation show what they show when they are run."""

from __future__ import annotations

import nbformat
import pytest

from notebooks import NOTEBOOKS, run_notebook, shown

MOST_BYTES = 150_000


def test_there_are_notebooks():
    assert {path.name for path in NOTEBOOKS} == {"audit-a-mechanism.ipynb", "own-data.ipynb"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_small_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {output.output_type for cell in code for output in cell.outputs}
    assert kinds <= {"execute_result", "display_data", "stream"}
    assert path.stat().st_size < MOST_BYTES
    assert any("<table>" in text for texts in shown(notebook) for text in texts)


@pytest.mark.docs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_the_same_when_it_is_run(path):
    kept = nbformat.read(path, as_version=4)
    assert shown(run_notebook(path)) == shown(kept)
