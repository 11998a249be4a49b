"""A script that clears its gradients behind its optimizer's step, where a step that is run again has
ended: run again, its steps summed up the gradients of all before."""

from __future__ import annotations

import re
from pathlib import Path

from nanodoc.facts.plateau import late_loss
from tests.helpers import line_of, nanodoc, python

SCRIPT = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def warm_up(step):
    return (step + 1) / 5


schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)
losses = []
for step in range(160):
    x = torch.randn(32, 8)
    loss = F.mse_loss(model(x), x.flip(1))
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad({how})
    losses.append(loss.item())
print(losses)
"""


def test_steps_run_again_are_those_of_the_training(tmp_path: Path) -> None:
    for how in ("", "set_to_none=False"):
        script = tmp_path / "train.py"
        script.write_text(SCRIPT.format(how=how))
        told = " ".join(nanodoc("run", "train.py", cwd=tmp_path).stderr.split())
        assert "ND609" in told
        assert f"--> train.py:{line_of(script, 'return (step + 1) / 5')}:" in told
        found = re.search(r"end at a loss of ([0-9.e-]+[0-9]) instead of ([0-9.e-]+[0-9])", told)
        assert found is not None
        cured = tmp_path / "cured.py"
        cured.write_text(script.read_text().replace("(step + 1) / 5", "min(1, (step + 1) / 5)"))
        for number, name in enumerate(("cured.py", "train.py"), 1):
            losses = [float(x) for x in python(name, cwd=tmp_path).stdout.strip("[]\n").split(",")]
            assert f"{late_loss(losses):.3g}" == found[number]
