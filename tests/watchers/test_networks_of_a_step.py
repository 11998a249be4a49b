"""Scripts whose steps call several networks, or draw their batch by themselves: the samples of each
network's batch are told apart, and a network that mixes them is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run_script import run_script
from nanodoc.report.report import Report
from nanodoc.supervise.launch import Launch
from tests.helpers import line_of
from tests.script.test_styles import _our_own_main

__all__ = ["_our_own_main"]

HEAD = """
import itertools
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
def mlp(*sizes):
    layers = [l for a, b in itertools.pairwise(sizes) for l in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])
"""
GAN = """
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=16, shuffle=True)
G, D = mlp(4, 16, 8), mlp(8, 16, 1)
og, od = (torch.optim.Adam(m.parameters(), 1e-3) for m in (G, D))
bce = nn.BCEWithLogitsLoss()
for step in range(12):
    real, = next(iter(loader))
    fake = G(torch.randn(16, 4))
    od.zero_grad()
    loss = bce(D(real), torch.ones(16, 1)) + bce(D(fake.detach()), torch.zeros(16, 1))
    loss.backward()
    od.step()
    og.zero_grad()
    bce(D(fake), torch.ones(16, 1)).backward()
    og.step()
"""
DQN = """
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.target = mlp(4, 32, 2), mlp(4, 32, 2)
        self.target.load_state_dict(self.q.state_dict())
agent = Agent()
optimizer = torch.optim.Adam(agent.q.parameters(), 1e-3)
S, A, R = torch.randn(500, 4), torch.randint(0, 2, (500,)), torch.randn(500)
for step in range(12):
    with torch.no_grad():
        action = agent.q(S[step : step + 1]).argmax()
    i = torch.randint(0, 499, (32,))
    with torch.no_grad():
        goal = R[i] + 0.99 * agent.target(S[i + 1]).max(1).values
    loss = F.smooth_l1_loss(agent.q(S[i]).gather(1, A[i, None])[:, 0], goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PPO = """
actor, critic = mlp(6, 32, 3), mlp(6, 32, 1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 1e-3)
for update in range(6):
    obs, acts, adv, ret = (
        torch.randn(64, 6), torch.randint(0, 3, (64,)), torch.randn(64), torch.randn(64)
    )
    with torch.no_grad():
        old = torch.distributions.Categorical(logits=actor(obs)).log_prob(acts)
    for part in torch.randperm(64).split(16):
        new = torch.distributions.Categorical(logits=actor(obs[part])).log_prob(acts[part])
        ratio = (new - old[part]).exp()
        gain = torch.min(ratio * adv[part], ratio.clamp(0.8, 1.2) * adv[part]).mean()
        loss = F.mse_loss(critic(obs[part])[:, 0], ret[part]) - gain
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
SEQUENCES = """
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(6, 16, batch_first=FIRST), nn.Linear(16, 1)
    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])
loader = DataLoader(TensorDataset(torch.randn(128, 5, 6), torch.randn(128)), batch_size=16)
actor, critic = mlp(6, 16, 2), Critic()
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 1e-3)
batches = itertools.cycle(loader)
for step in range(12):
    x, y = next(batches)
    loss = F.mse_loss(critic(x)[:, 0], y) + actor(x[:, 0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TIME_FIRST = """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(6, 16), nn.Linear(16, 6)
    def forward(self, x):
        return self.head(self.rnn(x)[0])
def get_batch():
    x = torch.randn(9, 4, 6)
    return x[:-1], x[1:]
model, other = Reader(), mlp(6, 8, 6)
optimizer = torch.optim.Adam([*model.parameters(), *other.parameters()], 1e-3)
for step in range(12):
    x, y = get_batch()
    loss = F.mse_loss(model(x) + other(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PARTS = """
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.heads = mlp(6, 16, 16), nn.ModuleList([mlp(16, 2), mlp(16, 3)])
model = Pair()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loader = DataLoader(TensorDataset(torch.randn(96, 6), torch.randint(0, 2, (96,))), batch_size=8)
for x, y in loader:
    h = model.encoder(x)
    loss = sum(F.cross_entropy(head(h), y) for head in model.heads)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def report(folder: Path, body: str) -> Report:
    path = folder / "train.py"
    path.write_text(HEAD + body)
    config = Config(device="cpu", snapshot_dir=str(folder / "kept"))
    return run_script(Launch(target=str(path), arguments=()), config)


@pytest.mark.parametrize("body", [GAN, DQN, PPO, PARTS, SEQUENCES.replace("FIRST", "True")])
def test_samples_of_every_network_are_looked_at(body: str, tmp_path: Path) -> None:
    told = report(tmp_path, body)
    assert "cross-sample leak" not in dict(told.not_checked)
    assert [f.code for f in told.findings if f.severity != "info"] == []


def test_a_network_that_runs_along_the_batch_is_found(tmp_path: Path) -> None:
    told = report(tmp_path, SEQUENCES.replace("FIRST", "False"))
    found = next(f for f in told.findings if f.code == "ND513")
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(tmp_path / "train.py", "nn.LSTM(")


def test_sequences_with_time_first_are_no_leak(tmp_path: Path) -> None:
    told = report(tmp_path, TIME_FIRST)
    assert [f.code for f in told.findings if f.severity != "info"] == []
    assert "samples or time steps" in dict(told.not_checked)["cross-sample leak"]
