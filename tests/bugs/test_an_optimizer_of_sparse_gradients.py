"""An optimizer all of whose gradients are sparse, beside one of dense ones: their norms were asked
for as of dense gradients, in the user's own step(), which raised."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import nanodoc, python

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
table, net = nn.EmbeddingBag(50, 4, mode="sum", sparse=True), nn.Linear(4, 1)
dense = torch.optim.Adam(net.parameters(), lr=1e-2)
sparse = torch.optim.SparseAdam(list(table.parameters()), lr=1e-2)
for _ in range(12):
    ids = torch.randint(50, (16, 3))
    loss = (net(table(ids))[:, 0] - ids.float().mean(1) / 25).square().mean()
    dense.zero_grad()
    sparse.zero_grad()
    loss.backward()
    dense.step()
    sparse.step()
print(loss.item(), table.weight.double().sum().item())
"""


def test_it_trains_as_without_nanodoc(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    bare = python("train.py", cwd=tmp_path)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, bare.stdout), done.stderr
