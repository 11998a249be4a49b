"""Learning rates that leave no room to learn, and schedules that end at zero as they should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler as schedules

from nanodoc import Recipe
from nanodoc.clinic.catalogue import find_patient
from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.facts.rates import _stalled, climbed, far_lower
from nanodoc.pipeline.run import run_training
from tests.helpers import diagnose, line_of, nanodoc


def run(
    make: Callable[[Any], Any] | None, *, lr: float = 0.1, steps: int = 60, every: str = "step"
) -> tuple[Finding, ...]:
    torch.manual_seed(0)
    x = torch.randn(8, 16, 6)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=optimizer,
        scheduler=make(optimizer) if make else None,
        scheduler_interval=every,
        data=list(zip(x, x[:, :, :3].argmax(2), strict=True)),
    )
    return diagnose(recipe, steps)


@pytest.mark.parametrize(
    ("make", "severity"),
    [
        (lambda o: schedules.ExponentialLR(o, 0.4), "critical"),
        (lambda o: schedules.StepLR(o, 1, 0.1), "critical"),
        (lambda o: schedules.MultiStepLR(o, [2, 4, 6, 8], 0.05), "critical"),
        (lambda o: schedules.LambdaLR(o, lambda step: max(0.0, 1 - step / 25)), "warning"),
        (lambda o: schedules.CosineAnnealingLR(o, 5), "warning"),
        (lambda o: schedules.CosineAnnealingLR(o, 15), "info"),
        (lambda o: schedules.LambdaLR(o, lambda step: float(step // 1000)), "critical"),
        (lambda o: schedules.LambdaLR(o, lambda step: 1.0 if step < 5 else 2e-3), "warning"),
        (lambda o: schedules.MultiStepLR(o, [4, 5]), "warning"),
        (lambda o: schedules.MultiStepLR(o, [2]), "warning"),
    ],
)
def test_schedules_that_leave_nothing(make: Any, severity: str) -> None:
    found = run(make)
    assert [(one.code, one.severity) for one in found] == [("ND609", severity)]


@pytest.mark.parametrize(
    "make",
    [
        lambda o: schedules.CosineAnnealingLR(o, 60),
        lambda o: schedules.OneCycleLR(o, 0.2, total_steps=61),
        lambda o: schedules.LinearLR(o, 0.0001, 1.0, 40),
        lambda o: schedules.CosineAnnealingWarmRestarts(o, 15),
        lambda o: schedules.CyclicLR(o, 0.001, 0.1, 10),
        lambda o: schedules.PolynomialLR(o, 60, 2.0),
        lambda o: schedules.StepLR(o, 20, 0.1),
        lambda o: schedules.ExponentialLR(o, 0.9),
        lambda o: schedules.LambdaLR(o, lambda step: min(1.0, (3 / (step + 3)) ** 0.5)),
        lambda o: schedules.LambdaLR(o, lambda step: min(1.0, step / 200)),
        None,
    ],
)
def test_schedules_that_end_as_they_should(make: Any) -> None:
    assert run(make) == ()


def test_a_function_that_gives_rates_and_no_factors() -> None:
    def warm_up(step: int) -> float:
        return 2e-3 * min(1.0, (step + 1) / 10)

    found = run(lambda o: schedules.LambdaLR(o, warm_up), lr=2e-3)
    assert [(one.code, one.severity) for one in found] == [("ND609", "warning")]
    assert "not factors" in found[0].explanation
    # meant to: the optimizer has a rate of 1
    assert "ND609" not in {
        one.code for one in run(lambda o: schedules.LambdaLR(o, warm_up), lr=1.0)
    }


def test_no_learning_rate_at_all() -> None:
    assert [one.code for one in run(None, lr=0.0)] == ["ND609"]


def test_a_schedule_of_another_library_is_named_where_it_is_made(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
import torch.nn.functional as F


class Cosine:
    def __init__(self, optimizer, length, lowest):
        self.optimizer, self.length, self.lowest = optimizer, length, lowest

    def step(self, update):
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 if update < self.length else self.lowest


def train(model, optimizer, schedule, epochs):
    for epoch in range(epochs):
        for update in range(20):
            x = torch.randn(16, 6)
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step(epoch * 20 + update + 1)


torch.manual_seed(0)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = Cosine(optimizer, length=5, lowest=1e-4)
train(model, optimizer, schedule, 5)
"""
    )
    told = nanodoc("run", str(script)).stderr
    assert "warning[ND609]: the learning rate is gone after 5 of 100 steps" in told
    assert f"train.py:{line_of(script, 'Cosine(optimizer, length=5')}" in told


def test_milestones_that_come_later_in_the_run() -> None:
    assert run(lambda o: schedules.MultiStepLR(o, [8, 30])) == ()


def test_one_cycle_counted_in_batches_and_stepped_by_epochs() -> None:
    assert [
        one.code
        for one in run(
            lambda o: schedules.OneCycleLR(o, 0.2, epochs=10, steps_per_epoch=8), every="epoch"
        )
    ] == ["ND609"]
    assert run(lambda o: schedules.OneCycleLR(o, 0.2, total_steps=10), every="epoch") == ()


RANDOM_LABELS = """
import torch
import torch.nn.functional as F
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4))
    return {"model": model, "data": [(torch.randn(32, 10), torch.randint(0, 4, (32,))) for _ in range(40)], "max_steps": 40,
            "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
            "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3)}
"""


def test_a_learning_rate_too_high_to_learn_with_is_shown_by_a_lower_one(tmp_path: Path) -> None:
    report = run_training(
        find_patient("hot-optimizer").entrypoint(), Config(device="cpu", snapshot_dir=str(tmp_path))
    )
    fix = report.findings[0].fixes[0]
    assert fix.verified
    assert fix.patch == "torch.optim.Adam(model.parameters(), lr=0.03)"
    assert "steps end at a loss of" in (fix.outcome or "")


def test_random_labels_are_nobodys_learning_rate(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANDOM_LABELS)
    report = run_training(
        f"{tmp_path / 'train.py'}:build", Config(device="cpu", snapshot_dir=str(tmp_path))
    )
    assert report.findings == ()


def scheduled(folder: Path, rate: str, schedule: str) -> Path:
    """A recipe of 120 steps."""
    file = folder / "train.py"
    file.write_text(
        "import torch\n"
        "import torch.nn.functional as F\n"
        "from torch import nn\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    x = torch.randn(20, 32, 12)\n"
        "    y = x[:, :, :4].argmax(2)\n"
        "    layers = [nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]\n"
        "    model = nn.Sequential(*layers, nn.Linear(32, 4))\n"
        f"    optimizer = torch.optim.AdamW(model.parameters(), lr={rate})\n"
        f"    scheduler = torch.optim.lr_scheduler.{schedule}\n"
        "    loss_fn = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])\n"
        "    return dict(model=model, loss_fn=loss_fn, optimizer=optimizer,\n"
        "                scheduler=scheduler, scheduler_interval='step',\n"
        "                data=list(zip(x, y)), max_steps=120)\n"
    )
    return file


def test_a_rate_under_a_schedule_is_lowered_where_it_is_written(tmp_path: Path) -> None:
    """What was tried is a tenth of every step's rate: of the number in the call, and not of what
    the schedule had made of it at the end."""
    file = scheduled(tmp_path, "1.0", "LambdaLR(optimizer, lambda n: 0.3 * min(1.0, (n + 1) / 20))")
    [found] = run_training(f"{file}:build", Config()).findings
    assert (found.code, found.severity) == ("ND609", "critical")
    assert found.fixes[0].verified
    assert found.fixes[0].patch == "torch.optim.AdamW(model.parameters(), lr=0.1)"


@pytest.mark.parametrize(
    ("losses", "stalls"),
    [
        ([2.7] * 10 + [2.0] * 110, True),
        ([2.7] * 10 + [2.0] * 50, False),  # too short to tell
        ([2.7 * 0.995**step for step in range(120)], False),  # still on its way
        ([2.7 * 0.9**step + 0.3 for step in range(120)], False),  # it has come down
    ],
)
def test_a_loss_that_stands_still(losses: list[float], stalls: bool) -> None:
    assert _stalled(losses) == stalls


def test_a_rate_that_the_step_itself_raises(tmp_path: Path) -> None:
    """The line is where the rate is set, and not where the optimizer was made."""
    file = tmp_path / "train.py"
    file.write_text(
        "import torch\n"
        "import torch.nn.functional as F\n"
        "from torch import nn\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    x = torch.randn(200, 16, 6)\n"
        "    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 6))\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)\n"
        "    steps = [0]\n"
        "    def train_step(model, batch):\n"
        "        steps[0] += 1\n"
        "        for group in optimizer.param_groups:\n"
        "            group['lr'] = 0.02 * steps[0]  # without end\n"
        "        loss = F.mse_loss(model(batch), 3 * batch)\n"
        "        optimizer.zero_grad()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "        return loss\n"
        "    return dict(model=model, train_step=train_step, optimizer=optimizer,\n"
        "                data=list(x), max_steps=200)\n"
    )
    first = run_training(f"{file}:build", Config()).findings[0]
    assert first.code == "ND606"
    assert first.culprit.location is not None
    assert first.culprit.location.line == line_of(file, "# without end")
    assert "had raised the learning rate" in first.explanation


def test_a_schedule_that_overwrites_the_rate_has_the_line(tmp_path: Path) -> None:
    """What OneCycleLR reaches is its own number: another rate in the optimizer changes nothing."""
    file = scheduled(tmp_path, "1e-3", "OneCycleLR(optimizer, 0.5, total_steps=121)")
    [found] = run_training(f"{file}:build", Config()).findings
    assert found.code == "ND609"
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(file, "OneCycleLR(")
    assert found.fixes[0].verified
    assert found.fixes[0].patch is None


@pytest.mark.parametrize(
    ("losses", "level"),
    [
        ([4.0 * 0.95**n for n in range(60)] + [0.2 + 0.03 * n for n in range(60)], True),
        ([4.0 * 0.95**n + 0.2 for n in range(120)], False),
        ([4.0, 0.5] * 60, False),  # batches that differ
        ([4.0 * 0.95**n for n in range(30)] + [2.0] * 30, False),  # too short
        ([1.0] * 60 + [5.0] * 60, False),  # above its start: a divergence
        ([0.9 * 0.9**n for n in range(70)] + [0.002] * 50, False),  # it knows all there is
    ],
)
def test_a_loss_that_climbs_again(losses: list[float], level: bool) -> None:
    lowest = climbed(losses)
    assert (lowest is not None) == level
    if lowest is not None:
        assert far_lower(losses, lowest)
        assert not far_lower(losses, losses[-1])


@pytest.mark.parametrize(
    ("late", "smaller", "told"),
    [
        (0.4, 0.2, False),  # twice as high, and a fifth of the way down
        (0.4, 0.15, True),
        (0.2, 0.05, True),  # four times as high, and a sixth of the way
        (0.05, 0.01, False),  # five times as high, of what is left when all is learnt
        (0.5, 0.3, False),
    ],
)
def test_how_far_below_a_smaller_rate_must_end(late: float, smaller: float, told: bool) -> None:
    losses = [1.25, *([late] * 150)]
    assert far_lower(losses, smaller) is told
