"""Run the notebooks from top to bottom: `python notebooks/execute.py` writes their outputs anew.

Outputs are for readers: what programs say on stderr is left out, and so is all that differs from run to run without
telling anything (execution times, addresses of this machine).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

FOLDER: Final = Path(__file__).resolve().parent
NAMES: Final = ("01_quick_start", "02_inside_the_store", "03_streaming")
TIMEOUT_S: Final = 240


def path_of(name: str) -> Path:
    """Where a notebook is."""
    return FOLDER / f"{name}.ipynb"


def committed(name: str) -> Any:
    """A notebook as it is on disk."""
    return nbformat.read(path_of(name), as_version=4)  # type: ignore[no-untyped-call]


def executed(name: str) -> Any:
    """A notebook with the outputs of a run in a kernel of its own. Raises CellExecutionError where a cell fails."""
    notebook = committed(name)
    # The kernel is this Python, and so is that of Spark's workers.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    client = NotebookClient(
        notebook, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()
    return tidied(notebook)


def tidied(notebook: Any) -> Any:
    """Without what is of no use to readers."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = _joined([each for each in cell.outputs if each.get("name") != "stderr"])
    notebook.metadata.pop("language_info", None)
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    """With what was printed in one piece: kernels cut it wherever they flush."""
    joined: list[Any] = []
    for each in outputs:
        if joined and each.output_type == joined[-1].output_type == "stream":
            joined[-1].text += each.text
        else:
            joined.append(each)
    return joined


def main() -> int:
    """Write all notebooks again, or those that the command line names."""
    for name in sys.argv[1:] or NAMES:
        notebook = executed(name)
        nbformat.write(notebook, path_of(name))  # type: ignore[no-untyped-call]
        print(f"{name}: {sum(cell.cell_type == 'code' for cell in notebook.cells)} cells")
    return 0


if __name__ == "__main__":
    sys.exit(main())
