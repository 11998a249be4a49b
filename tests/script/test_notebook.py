"""nanodoc in the cells of a notebook, run by a real kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

MADE = """
import torch, nanodoc
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
data = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(6)]
backward = torch.Tensor.backward
"""
TRAINED = """
with nanodoc.watch(model, optimizer) as watch:
    for i, (x, y) in enumerate(watch.steps(data)):
        optimizer.zero_grad()
        out = model(x)
        SPOILED
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
watch
"""
SICK = TRAINED.replace("SPOILED", "out = out / (out - out) if i == 3 else out")
INTERRUPTED = TRAINED.replace("SPOILED", "if i == 3: raise KeyboardInterrupt")
LEFT = "print(torch.Tensor.backward is backward)"


class Kernel:
    """A kernel, and a cell at a time."""

    def __init__(self, folder: Path) -> None:
        notebook = nbformat.v4.new_notebook()
        self.client = nbclient.NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}
        )

    def run(self, source: str) -> list[dict[str, object]]:
        """The outputs of a cell."""
        cells = self.client.nb.cells
        cells.append(nbformat.v4.new_code_cell(source))
        self.client.execute_cell(cells[-1], len(cells) - 1)
        return list(cells[-1].outputs)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    made = Kernel(tmp_path)
    with made.client.setup_kernel():
        made.run(MADE)
        yield made


def shown(outputs: list[dict[str, object]]) -> str:
    """The one output that a cell shows, as HTML."""
    (output,) = outputs
    return str(output["data"]["text/html"])  # type: ignore[index]  # a result holds its forms there


@pytest.mark.filterwarnings("ignore")  # of the kernel's own packages
def test_cells_are_watched_again_and_again(kernel: Kernel) -> None:
    healthy = TRAINED.replace("SPOILED", "")
    for number in (2, 3):  # as a cell that is run twice
        text = shown(kernel.run(healthy))
        assert "verdict: nothing found" in text
        assert f"step In[{number}]:2, replay of step 0 bitwise the same" in text
    text = shown(kernel.run(SICK))
    assert "critical[ND202]: division by zero" in text
    assert "In[4]:5:" in text
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="KeyboardInterrupt"):
        kernel.run(INTERRUPTED)
    assert kernel.run(LEFT)[0]["text"] == "True\n"
    assert "verdict: nothing found" in shown(kernel.run(healthy))
