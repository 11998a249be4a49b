"""Bugs that raise nothing, each with a healthy twin that looks like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of
from tests.rules.test_divergence import examined

CODER = """
class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.back = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(4, 8)
    def forward(self, x):
        mean, std = self.mean(x), torch.exp(0.5 * self.spread(x))
        DRAWN
        return self.back(code), mean, std

def loss(model, batch):
    out, mean, std = model(batch[0])
    return F.mse_loss(out, batch[0]) + 0.01 * (mean.pow(2) + std - torch.log(std)).mean()

def build():
    model = Coder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return {"model": model, "loss_fn": loss, "data": BATCHES, "optimizer": optimizer}
"""
POLICY = """
def loss(model, batch):
    policy, critic = model["policy"], model["critic"]
    drawn = torch.distributions.Normal(policy(batch[0]), 1.0)
    action = drawn.sample()
    gain = -(action - batch[0][:, :1]).pow(2)
    value = critic(batch[0])
    return -(drawn.log_prob(action) * (gain - value).detach()).mean() + F.mse_loss(value, gain)

def build():
    model = nn.ModuleDict({"policy": nn.Linear(8, 1), "critic": nn.Linear(8, 1)})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return {"model": model, "loss_fn": loss, "data": BATCHES, "optimizer": optimizer}
"""
ZEROS = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 2)
        for layer in [LAYERS]:
            nn.init.zeros_(layer.weight)  # here
    def forward(self, x):
        return self.head(x + self.outer(torch.tanh(self.inner(x))))

def build():
    model = Block()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return {"model": model, "loss_fn": classes, "data": BATCHES, "optimizer": optimizer}
"""
DETACHED = """
def loss(model, batch):
    output = model(batch[0])
    DETACHED

def build():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return {"model": model, "loss_fn": loss, "data": BATCHES, "optimizer": optimizer}
"""
BESIDE = """
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        small = lambda: [m for _ in range(3) for m in (nn.Linear(8, 8), nn.Tanh())]
        self.policy = nn.Sequential(*small(), nn.Linear(8, 2))
        self.critic = nn.Sequential(*small(), nn.Linear(8, 1))
    def forward(self, x):
        return self.policy(x), self.critic(x)

def loss(model, batch):
    policy, value = model(batch[0])
    return 1e-4 * F.cross_entropy(policy, batch[1]) + F.mse_loss(value, 50 + batch[0][:, :1])

def build():
    model = Both()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return {"model": model, "loss_fn": loss, "data": BATCHES, "optimizer": optimizer}
"""
JUDGED = """
def loss(model, batch):
    policy, critic = model["policy"], model["critic"]
    drawn = torch.distributions.Normal(policy(batch[0]), torch.ones(16, 1))
    action = drawn.sample()
    value = critic(torch.cat([batch[0], action], 1))
    gain = -(action - batch[0][:, :1]).pow(2)
    return -(drawn.log_prob(action) * value.detach()).mean() + F.mse_loss(value, gain)

def build():
    model = nn.ModuleDict({"policy": nn.Linear(8, 1), "critic": nn.Linear(9, 1)})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return {"model": model, "loss_fn": loss, "data": BATCHES, "optimizer": optimizer}
"""
CASES = {
    "a critic that judges the sample before its log probability": (JUDGED, None),
    "a latent drawn by torch.normal": (
        CODER.replace("DRAWN", "code = torch.normal(mean, std)  # here"),
        "cut-graph",
    ),
    "a latent drawn by sample()": (
        CODER.replace("DRAWN", "code = torch.distributions.Normal(mean, std).sample()  # here"),
        "cut-graph",
    ),
    "a latent drawn by rsample()": (
        CODER.replace("DRAWN", "code = torch.distributions.Normal(mean, std).rsample()"),
        None,
    ),
    "a policy and its log probability": (POLICY, None),
    "two layers of zeros behind each other": (
        ZEROS.replace("LAYERS", "self.inner, self.outer"),
        "poor-initialisation",
    ),
    "a residual branch that ends in zeros": (ZEROS.replace("LAYERS", "self.outer"), None),
    "a detached loss": (
        DETACHED.replace(
            "DETACHED",
            "return F.cross_entropy(output.detach() + 0 * output, batch[1])  # here",
        ),
        "cut-graph",
    ),
    "nets beside each other": (BESIDE, None),
}


@pytest.mark.parametrize("kind", CASES)
def test_what_is_found(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, name = CASES[kind]
    report = examined(tmp_path, text, monkeypatch)
    found = [finding for finding in report.findings if finding.severity != "info"]
    if name is None:
        assert [finding.title for finding in found] == []
        return
    assert found[0].name == name, [finding.title for finding in found]
    assert found[0].culprit.location is not None
    assert found[0].culprit.location.line == line_of(tmp_path / "train.py", "# here")


def test_a_margin_that_always_holds_is_no_detached_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = "return F.relu((output - output.detach().mean(0)).pow(2).sum(1) - 100).mean() + 1"
    report = examined(tmp_path, DETACHED.replace("DETACHED", held), monkeypatch)
    assert [finding.name for finding in report.findings][:1] == ["zero-loss"]
