"""The notebooks of the documentation, run from nothing.

``python tests/notebooks.py [NOTEBOOK ...]`` runs them and writes what they show into them.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SECONDS_FOR_A_CELL = 600
DRAWN = ("image/png",)
"""What differs with the version of the library that draws it."""


def run_notebook(path: Path) -> Any:
    """Return a notebook after all its cells have been run in a folder of its own."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # its warning would be an output
        client = NotebookClient(notebook, timeout=SECONDS_FOR_A_CELL, resources=resources)
        return client.execute()


def shown(notebook: Any) -> list[list[str]]:
    """Return what each cell of a notebook shows, with every number as one sign."""
    return [
        [_text(output) for output in cell.outputs if _text(output)]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def tidied(notebook: Any) -> Any:
    """Return a notebook as it is kept: without times, and without outputs that show nothing."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _text(output) or _is_drawn(output)]
    notebook.metadata = {
        "language_info": {"name": "python"},
        "kernelspec": notebook.metadata.kernelspec,
    }
    return notebook


def _is_drawn(output: Any) -> bool:
    return any(kind in output.get("data", {}) for kind in DRAWN)


def _text(output: Any) -> str:
    data = output.get("data", {})
    text = "".join(
        data.get("text/html", "") or data.get("text/plain", "") or output.get("text", "")
    )
    text = re.sub(r'points="[^"]*"', "", text)
    return re.sub(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", "#", text).strip()


def main(names: list[str]) -> None:
    """Run notebooks and write them."""
    import nbformat

    for path in [Path(name).resolve() for name in names] or NOTEBOOKS:
        nbformat.write(tidied(run_notebook(path)), path)


if __name__ == "__main__":
    main(sys.argv[1:])
