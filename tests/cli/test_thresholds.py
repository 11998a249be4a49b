"""A threshold that was configured is what rules compare with, whichever command asks them."""

from __future__ import annotations

from pathlib import Path

import pytest

import nanodoc.pipeline.diagnose as judging
from nanodoc.cli.app import app
from nanodoc.config import Config
from nanodoc.diagnosis.claim import Claim
from nanodoc.facts.evidence import Evidence

TRAIN = """
import torch

def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    data = [torch.zeros(4, 3)]
    return {"model": model, "loss_fn": lambda m, b: (m(b) / b.sum()).mean(), "data": data,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 1}
"""
COMMANDS = {
    "run": ["run", "train.py:build"],
    "replay": ["replay", "nanodoc-out/nanodoc-step0.pt"],
    "check-grad-graph": ["check-grad-graph", "train.py:build"],
}


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Evidence]:
    """A run left its snapshot in the working folder; the evidence rules see from then on."""
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    app(["run", "train.py:build", "--in-process", "--quiet"], standalone_mode=False)
    assert (tmp_path / "nanodoc-out/nanodoc-step0.pt").exists()
    seen: list[Evidence] = []
    real = judging.claims

    def claims(evidence: Evidence, select: tuple[str, ...], ignore: tuple[str, ...]) -> list[Claim]:
        seen.append(evidence)
        return real(evidence, select, ignore)

    monkeypatch.setattr(judging, "claims", claims)
    return seen


@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_and_the_configuration_reach_the_rules(
    command: str, judged: list[Evidence], tmp_path: Path
) -> None:
    arguments = [*COMMANDS[command], "--in-process"]
    app(arguments, standalone_mode=False)
    assert judged.pop().thresholds == {}
    app([*arguments, "--threshold", "dead-units.share=0.7"], standalone_mode=False)
    assert judged.pop().thresholds == {"dead-units.share": 0.7}
    (tmp_path / "pyproject.toml").write_text("[tool.nanodoc.thresholds]\n'loss-spike.times' = 3\n")
    app(arguments, standalone_mode=False)
    assert judged.pop().thresholds == {"loss-spike.times": 3.0}
    assert judged == []


def test_other_processes_are_judged_with_them_too() -> None:
    """What becomes of a dead process, or of several ranks, goes the same way."""
    config = Config(thresholds={"loss-spike.times": 2.0})
    spike = Evidence(steps_run=40, losses=(1.0,) * 20 + (5.0,) + (1.0,) * 19)
    assert [finding.name for finding in judging.diagnose(spike, config)] == ["loss-spike"]
    assert judging.diagnose(spike, Config()) == ()
