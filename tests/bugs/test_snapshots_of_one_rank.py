"""The report of a distributed run names the snapshot of the rank that failed as what to replay. The
replay had no process group, for which the script asks, and ended with torch's own words about RANK."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc, report_of

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
rank = dist.get_rank()
for step, (x, y) in enumerate(loader):
    scale = torch.ones(1)
    if rank == 1 and step == 4:
        scale = scale * 0
    optimizer.zero_grad()
    loss = (net(x / scale) - y).square().mean()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""

RECIPE = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.b((self.a(x) * 1e30).exp())

def loss_of(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()

def build():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(dist.get_rank())
    data = [(torch.randn(8, 8, generator=draw), torch.randn(8, 1, generator=draw)) for _ in range(4)]
    model = DistributedDataParallel(Net())
    return model, loss_of, data, torch.optim.SGD(model.parameters(), lr=0.01)
"""


@pytest.mark.parametrize("in_process", [False, True])
def test_a_script_is_replayed_in_a_group_of_one(tmp_path: Path, in_process: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    nanodoc("run", "--output", "report.txt", "train.py", cwd=tmp_path, ranks=2)
    told = (tmp_path / "report.txt").read_text()
    assert "next: nanodoc replay nanodoc-out/rank1/nanodoc-step4.pt" in told
    options = ("--in-process",) if in_process else ()
    report = report_of(
        nanodoc(
            *("replay", "nanodoc-out/rank1/nanodoc-step4.pt", "--output-format", "json", *options),
            cwd=tmp_path,
        )
    )
    first = report["findings"][0]
    assert first["culprit"]["location"]["line"] == line_of(script, "net(x / scale)")
    assert first["step"] == 4
    assert report["run"]["reproduced"] == "bitwise"
    assert "float64" in [experiment["name"] for experiment in first["experiments"]]


def test_a_recipe_is_replayed_in_a_group_of_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RECIPE)
    nanodoc("run", "train.py:build", "--output", "report.txt", cwd=tmp_path, ranks=2)
    saved = sorted(tmp_path.glob("nanodoc-out/rank*/nanodoc-step0.pt"))
    assert len(saved) == 2
    for snapshot in saved:
        done = nanodoc("replay", str(snapshot), "--output-format", "json", cwd=tmp_path)
        where = report_of(done)["findings"][0]["culprit"]["location"]
        assert where["line"] == line_of(script, "* 1e30")
