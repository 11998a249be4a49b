"""What each rule proposes is tried at its own call, and only what cures the step and leaves the
rest alone is called verified."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.pipeline.run import run_training
from nanodoc.report.fixes import changed_line
from nanodoc.report.terminal import render
from tests.helpers import nanodoc, report_of

PROGRAM = """\
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
{init}

    def forward(self, batch):
        x, y = batch
        h = self.linear(x)
{forward}


def build():
    torch.manual_seed(0)
    model = Net()
    data = [(torch.rand(8, 4) + 0.1, torch.randint(0, 4, (8,))) for _ in range(3)]
    x, y = data[1]
{plant}
    return {{"model": model, "loss_fn": lambda model, batch: model(batch), "data": data, "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 3}}
"""

# name -> (set-up, forward, what is planted in the second batch, rule, the line with the fix)
PROGRAMS = {
    "the root of zero": (
        "",
        "return torch.sqrt((x * h.exp()).sum(1)).mean()",
        "x[3] = 0",
        "infinite-gradient",
        "return torch.sqrt((x * h.exp()).sum(1).clamp_min(1e-12)).mean()",
    ),
    "one over a count": (
        "",
        "n = (x > 0).sum(1)\nreturn (h.sum(1) / n).mean()",
        "x[3] = 0",
        "division-by-zero",
        "return (h.sum(1) / n.masked_fill(n == 0, 1)).mean()",
    ),
    "log of a probability": (
        "",
        "p = torch.sigmoid(h.sum(1) - x.sum(1))\nreturn -torch.log(p).mean()",
        "x[3] = 200",
        "log-of-zero",
        "return -torch.log(p.clamp_min(1e-12)).mean()",
    ),
    "log of softmax": (
        "",
        "p = F.softmax(h * x, 1)\nreturn F.nll_loss(torch.log(p), y)",
        "x[3] = 1e3",
        "log-of-softmax",
        None,
    ),
    "log of a negative number": (
        "",
        "return (h * torch.log1p(x)).mean()",
        "x[3, 2] = -5.0",
        "domain-error",
        "return (h * torch.log1p(x.clamp_min(-1 + 1e-06))).mean()",
    ),
    "softmax by hand": (
        "",
        "s = h.abs() * x\ne = torch.exp(s)\nreturn F.nll_loss((e / e.sum(1, keepdim=True) + "
        "1e-9).log(), y)",
        "x[3] = 1e3",
        "overflow",
        "e = torch.exp(s - s.amax(-1, keepdim=True))",
    ),
    "logsumexp by hand": (
        "",
        "s = h * x\nreturn (torch.exp(s).sum(1).log() - s[:, 0]).mean()",
        "x[3] = 1e3",
        "overflow",
        None,
    ),
    "a variance that explodes": (
        "",
        "return (h.pow(2) + torch.exp(x) * 0.5).mean()",
        "x[3] = 300.0",
        "overflow",
        "return (h.pow(2) + torch.exp(x.clamp_max(80)) * 0.5).mean()",
    ),
    "nothing selected": (
        "",
        "mask = x[:, 0] > 0\nper = h.pow(2).sum(1)\nreturn per[mask].mean()",
        "x[:] = -1",
        "empty-reduction",
        "return per[mask].sum() / mask.sum().clamp(min=1)",
    ),
    "nothing to learn from": (
        "",
        "return F.cross_entropy(h, y)",
        "y[:] = -100",
        "all-targets-ignored",
        "return F.cross_entropy(h, y, reduction='sum') / (y != -100).sum().clamp(min=1)",
    ),
    "a target that is missing": (
        "",
        "t = x[:, 0]\nseen = ~t.isnan()\nreturn F.mse_loss(h[:, 0], t, "
        "reduction='none')[seen].mean()",
        "x[3, 0] = float('nan'); x[:, 1:] = 0.5",
        None,
        None,
    ),
    "a row without anything to look at": (
        "",
        "s = h.masked_fill(x < 0, float('-inf'))\nreturn torch.softmax(s, 1).pow(2).mean()",
        "x[3] = -1",
        "fully-masked-softmax",
        "return torch.softmax(s.masked_fill(s.isneginf().all(-1, keepdim=True), 0.0), "
        "1).pow(2).mean()",
    ),
    "a masked branch": (
        "",
        "z = x[:, 0] * h.exp()[:, 0]\nr = torch.where(z > 0, torch.sqrt(z), z)\nreturn r.mean()",
        "x[3] = 0",
        "masked-branch-gradient",
        "r = torch.where(z > 0, torch.sqrt(z.clamp_min(1e-12)), z)",
    ),
    "equal eigenvalues": (
        "",
        "m = torch.diag_embed(x[:, :2] * self.linear.weight[0, :2].exp())\nv, q = "
        "torch.linalg.eigh(m)\nreturn (v + q[..., 0, :]).pow(2).mean() + h.mean()",
        "x[3] = 0",
        "degenerate-decomposition",
        None,
    ),
    "a layer without weights": (
        "        self.scale = nn.Parameter(torch.full((4,), float('nan')))",
        "return (h * self.scale).mean()",
        "",
        "uninitialised-parameter",
        None,
    ),
}


def first(tmp_path: Path, name: str) -> Finding:
    init, forward, plant, _, _ = PROGRAMS[name]
    (tmp_path / "train.py").write_text(
        PROGRAM.format(
            init=init,
            forward=textwrap.indent(forward, " " * 8),
            plant=textwrap.indent(plant, " " * 4),
        )
    )
    return run_training(
        f"{tmp_path / 'train.py'}:build", Config(device="cpu", snapshot_dir=str(tmp_path))
    ).findings[0]


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_fix_is_found_that_cures_the_step(name: str, tmp_path: Path) -> None:
    _, _, _, rule, line = PROGRAMS[name]
    finding = first(tmp_path, name)
    assert rule is None or finding.name == rule
    fix = finding.fixes[0]
    assert fix.verified is True, finding.fixes
    assert fix.loss_change is None or fix.loss_change < 1e-3
    assert len(finding.fixes) <= 3
    if line is not None:
        change = changed_line(finding, fix)
        assert change is not None
        assert change[2] == line


def test_what_distorts_the_healthy_samples_is_not_verified(tmp_path: Path) -> None:
    """A biased deviation cures the single value, and changes all others: the one that only changes
    single values wins."""
    (tmp_path / "train.py").write_text(
        PROGRAM.format(
            init="",
            plant="    data[1] = (x[:1], y[:1])",
            forward="        a = h[:, 0]\n        return ((a - a.mean()) / (a.std() + 1e-4) * x[:, "
            "0]).pow(2).mean()",
        )
    )
    finding = run_training(
        f"{tmp_path / 'train.py'}:build", Config(device="cpu", snapshot_dir=str(tmp_path))
    ).findings[0]
    assert finding.name == "degenerate-statistics"
    assert finding.fixes[0].verified is True
    assert finding.fixes[0].patch == "a.std(unbiased=a.numel() > 1)"
    biased = [fix for fix in finding.fixes if fix.title == "use the biased estimate"]
    assert not any(fix.verified for fix in biased)


def test_the_diff_is_printed_under_the_help(tmp_path: Path) -> None:
    init, forward, plant, _, _ = PROGRAMS["one over a count"]
    (tmp_path / "train.py").write_text(
        PROGRAM.format(
            init=init,
            forward=textwrap.indent(forward, " " * 8),
            plant=textwrap.indent(plant, " " * 4),
        )
    )
    report = run_training(
        f"{tmp_path / 'train.py'}:build", Config(device="cpu", snapshot_dir=str(tmp_path))
    )
    text = render(report)
    assert "- " + " " * 8 + "return (h.sum(1) / n).mean()\n" in text
    assert "+ " + " " * 8 + "return (h.sum(1) / n.masked_fill(n == 0, 1)).mean()\n" in text


def test_fix_writes_a_patch_that_applies_and_cures(tmp_path: Path) -> None:
    init, forward, plant, _, _ = PROGRAMS["the root of zero"]
    source = PROGRAM.format(
        init=init, forward=textwrap.indent(forward, " " * 8), plant=textwrap.indent(plant, " " * 4)
    )
    (tmp_path / "train.py").write_text(source)
    sick = report_of(
        nanodoc("run", "train.py:build", "--output-format", "json", "--fix", cwd=tmp_path)
    )
    assert sick["artifacts"]["patch"] == "nanodoc-out/nanodoc.patch"
    assert (tmp_path / "train.py").read_text() == source  # never touched
    subprocess.run(
        ["patch", "-p1", "-i", "nanodoc-out/nanodoc.patch"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "train.py").read_text() != source
    cured = report_of(
        nanodoc("run", "train.py:build", "--output-format", "json", "--fix", cwd=tmp_path)
    )
    assert cured["verdict"] == "nothing found"
    assert "patch" not in cured["artifacts"]
    assert {"what": "--fix", "why": "nothing was found"} in cured["not_checked"]


def test_an_earlier_patch_is_not_overwritten(tmp_path: Path) -> None:
    init, forward, plant, _, _ = PROGRAMS["the root of zero"]
    (tmp_path / "train.py").write_text(
        PROGRAM.format(
            init=init,
            forward=textwrap.indent(forward, " " * 8),
            plant=textwrap.indent(plant, " " * 4),
        )
    )
    (tmp_path / "nanodoc-out").mkdir()
    (tmp_path / "nanodoc-out/nanodoc.patch").write_text("mine")
    report = report_of(
        nanodoc("run", "train.py:build", "--output-format", "json", "--fix", cwd=tmp_path)
    )
    assert report["artifacts"]["patch"] == "nanodoc-out/nanodoc-2.patch"
    assert (tmp_path / "nanodoc-out/nanodoc.patch").read_text() == "mine"
