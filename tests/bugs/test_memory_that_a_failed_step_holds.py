"""Found on a GPU: a step that failed for want of memory was looked at while its tensors were still
there, held by the closures of torch's module calls and by the note of the call that failed, so that
the second run failed at its first op and nothing was told of what holds the memory."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers import line_of, nanodoc

RECIPE = """
import weakref
import torch
from torch import nn

first, calls = [], [0]

def build():
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    inner = nn.Linear(64, 2, bias=False)
    del inner.weight
    inner.weight = torch.zeros(1, 64).expand(1 << 44, 64)
    wide = nn.Sequential(nn.Linear(64, 64), inner)  # what raises has torch's frames around it

    def loss_fn(model, batch):
        calls[0] += 1
        open(f"alive{calls[0]}.txt", "w").write(str(sum(one() is not None for one in first)))
        out = batch.repeat(4, 1)
        for _ in range(8):
            out = model(out)  # fills it
            if calls[0] == 1:
                first.append(weakref.ref(out))
        return wide(out).sum()

    return {"model": model, "loss_fn": loss_fn, "data": [torch.rand(8, 64)] * 2,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 2}
"""


def test_nothing_of_it_is_left_when_it_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECIPE)
    done = nanodoc("run", "train.py:build", "--output-format", "json", cwd=tmp_path)
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["code"] == "ND704"
    place = f"train.py:{line_of(tmp_path / 'train.py', '# fills it')}"
    assert any(place in row["label"] for row in finding["evidence"])
    assert (tmp_path / "alive2.txt").read_text() == "0"
