"""Scripts whose steps are small: most iterations are watched by their losses alone, and everything
is told, and left, as if all of them had been watched in full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanodoc.loop.brief_steps import is_full
from tests.helpers import line_of, nanodoc, python

BRIEF = 103
assert not is_full(BRIEF)
HEAD = """
import random
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
random.seed(0)
np.random.seed(0)
at = int(sys.argv[1])
odd = sys.argv[2]


def spoilt(loss, out, n):
    if n == at and odd == "value":
        return loss + torch.log(-out.abs().sum())  # value
    if n == at and odd == "gradient":
        return loss + (out - out.detach()).pow(2).sum().sqrt()  # gradient
    if n == at and odd == "index":
        return loss + out[0, n]  # index
    return loss


def left(*modules):
    with torch.no_grad():
        print([float(p.double().sum()) for m in modules for p in m.parameters()])
    print(random.random(), np.random.rand(), torch.rand(1))
"""
CLASSIFIER = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.1))
        self.head = nn.Linear(32, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.head(self.body(x))


def main():
    data = TensorDataset(torch.randn(160, 8), torch.randint(4, (160,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    n, total, seen = 0, 0.0, []
    for epoch in range(15):
        for x, y in loader:
            optimizer.zero_grad()
            out = model(x + random.random() * 0.01)
            loss = spoilt(F.cross_entropy(out, y), out, n)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
            seen.append(n)
            n += 1
        print(epoch, total, len(seen), model.calls)
    left(model)


main()
"""
TWO_PLAYERS = """
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
data = torch.randn(160, 2)
n = 0


def epoch(loader):
    global n
    for (real,) in loader:
        fake = generator(torch.randn(len(real), 4))
        optimizer_c.zero_grad()
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        loss = F.binary_cross_entropy_with_logits(critic(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
        loss.backward()
        optimizer_c.step()
        optimizer_g.zero_grad()
        loss_g = spoilt(F.binary_cross_entropy_with_logits(critic(fake), ones), fake, n)
        loss_g.backward()
        optimizer_g.step()
        n += 1
    return loss.item(), loss_g.item()


for number in range(15):
    print(number, *epoch(DataLoader(TensorDataset(data), 16, shuffle=True)))
    critic.eval()
    with torch.no_grad():
        print(float(critic(generator(torch.randn(5, 4))).mean()))
    critic.train()
left(generator, critic)
"""
ACTOR_CRITIC = """
actor, critic = nn.Linear(4, 1), nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
target = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
target.load_state_dict(critic.state_dict())
of_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
states, actions, rewards = torch.zeros(500, 4), torch.zeros(500, 1), torch.zeros(500, 1)
state, size = torch.randn(4), 0
for n in range(-20, 230):
    with torch.no_grad():
        action = actor(state).tanh()
    states[size], actions[size] = state, action
    state = 0.9 * state + 0.3 * action + 0.05 * torch.randn(4)
    rewards[size] = -state.square().mean()
    size += 1
    if n < 0:
        continue
    drawn = torch.randint(0, size - 1, (32,))
    with torch.no_grad():
        after = states[drawn + 1]
        value = rewards[drawn] + 0.9 * target(torch.cat([after, actor(after).tanh()], 1))
    out = critic(torch.cat([states[drawn], actions[drawn]], 1))
    loss = spoilt(F.mse_loss(out, value), out, n)
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    gain = critic(torch.cat([states[drawn], actor(states[drawn]).tanh()], 1)).mean()
    of_actor.zero_grad()
    (-gain).backward()
    of_actor.step()
    with torch.no_grad():
        for average, learnt in zip(target.parameters(), critic.parameters()):
            average.lerp_(learnt, 0.01)
left(actor, critic, target)
"""
STEPS_ITS_WORLD = (
    ACTOR_CRITIC.replace(
        "            average.lerp_(learnt, 0.01)\n",
        "            average.lerp_(learnt, 0.01)\n    world.update(bytes([n % 251]))\n",
    )
    .replace("left(actor, critic, target)", "left(actor, critic, target)\nprint(world.hexdigest())")
    .replace("state, size =", "import hashlib; world = hashlib.sha256()\nstate, size =")
)
"""The state of `world` is in native code, and is moved behind the target network."""
LEAVES_OUT = CLASSIFIER.replace(
    "            loss.backward()\n",
    "            if not torch.isfinite(loss):\n"
    "                print('left out', n)\n"
    "                n += 1\n"
    "                continue\n"
    "            loss.backward()\n",
)
RARE_ROWS = """
table, head = nn.Embedding(50, 8), nn.Linear(8, 4)
model = nn.ModuleDict({"table": table, "head": head})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
for n in range(400):
    row = torch.full((16,), 40) if n == at else torch.randint(20, (16,))
    found = model["table"](row)
    loss = F.cross_entropy(model["head"](found), row % 4)
    loss = spoilt(loss, found, n)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
STYLES = {"classifier": CLASSIFIER, "two players": TWO_PLAYERS, "actor critic": ACTOR_CRITIC}


def written(folder: Path, style: str) -> Path:
    file = folder / "train.py"
    file.write_text(HEAD + style)
    return file


def brief_steps(folder: Path) -> list[int]:
    lines = [
        json.loads(line)
        for line in (folder / "nanodoc-out/history.jsonl").read_text().splitlines()[1:]
    ]
    return [line["step"] for line in lines if "grad_norm" not in line]


@pytest.mark.parametrize("style", [*STYLES.values(), LEAVES_OUT], ids=[*STYLES, "leaves out"])
def test_everything_is_as_without_nanodoc(style: str, tmp_path: Path) -> None:
    written(tmp_path, style)
    bare = python("train.py", "101", "value" if style is LEAVES_OUT else "", cwd=tmp_path)
    assert bare.returncode == 0, bare.stderr
    arguments = ("--", "101", "value" if style is LEAVES_OUT else "")
    watched = nanodoc("run", "--quiet", "--budget", "5", "train.py", *arguments, cwd=tmp_path)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert watched.stdout == bare.stdout
    assert len(brief_steps(tmp_path)) > 80


@pytest.mark.parametrize("odd", ["value", "gradient", "index"])
@pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))
def test_a_brief_step_that_is_sick_is_told_at_its_line(
    style: str, odd: str, tmp_path: Path
) -> None:
    file = written(tmp_path, style)
    output = ("--output", "report.json", "--output-format", "json")
    done = nanodoc(
        *("run", "--quiet", *output, "train.py", "--", str(BRIEF), odd),
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    finding = report["findings"][0]
    assert finding["culprit"]["location"]["line"] == line_of(file, f"# {odd}")
    assert finding["step"] == BRIEF
    assert report["run"]["reproduced"] == "bitwise"
    assert BRIEF - 1 in brief_steps(tmp_path) or BRIEF - 2 in brief_steps(tmp_path)
    if odd == "index":
        return
    snapshot = report["artifacts"]["snapshot"]
    again = nanodoc("replay", snapshot, cwd=tmp_path)
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"train.py:{line_of(file, f'# {odd}')}" in again.stdout + again.stderr


def test_what_moves_in_native_code_is_not_run_again(tmp_path: Path) -> None:
    written(tmp_path, STEPS_ITS_WORLD)
    bare = python("train.py", "500", "", cwd=tmp_path)
    assert bare.returncode == 0, bare.stderr
    watched = nanodoc("run", "--quiet", "--budget", "5", "train.py", "--", "500", "", cwd=tmp_path)
    assert watched.stdout == bare.stdout


def test_a_row_that_no_later_step_uses(tmp_path: Path) -> None:
    """Its weights are NaN from then on, and no loss tells; the next copy of the weights does."""
    file = written(tmp_path, RARE_ROWS)
    output = ("--output", "report.json", "--output-format", "json")
    done = nanodoc(
        "run", "--quiet", *output, "train.py", "--", str(BRIEF), "gradient", cwd=tmp_path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    finding = report["findings"][0]
    assert finding["culprit"]["location"]["line"] == line_of(file, "# gradient")
    assert (finding["step"], report["run"]["steps_run"]) == (BRIEF, BRIEF + 1)
    assert BRIEF in brief_steps(tmp_path)
