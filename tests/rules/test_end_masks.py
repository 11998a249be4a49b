"""Targets of Q-learning, and the flags of the steps that end an episode."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.trace.branches import Scope, ran
from nanodoc.trace.unread import remembered_steps, swapped_ends
from tests.helpers import diagnose

Target = Callable[[SimpleNamespace, torch.Tensor], torch.Tensor]


def codes(target: Target, *, ends: float = 0.15) -> set[str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        state, action, rewards, after, dones = batch
        kept = SimpleNamespace(rewards=rewards, dones=dones)
        with torch.no_grad():
            wanted = target(kept, model(after).max(1).values)
        return F.mse_loss(model(state).gather(1, action).squeeze(1), wanted)

    data = []
    for _ in range(12):  # each next state is the next sample's state, but at the ends
        states, dones = torch.randn(33, 4), (torch.rand(32, 1) < ends).float()
        after = torch.where(dones.bool(), torch.randn(32, 4), states[1:])
        paid = torch.randn(32) - 9 * dones.flatten()
        data.append((states[:-1], torch.randint(0, 2, (32, 1)), paid, after, dones))
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=data,
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
    )
    return {finding.code for finding in diagnose(recipe, 12)}


def flat(kept: SimpleNamespace, best: torch.Tensor) -> torch.Tensor:
    return kept.rewards + 0.99 * best * kept.dones.flatten()


def turned(kept: SimpleNamespace, best: torch.Tensor) -> torch.Tensor:
    return kept.rewards + 0.99 * best * (1 - kept.dones.flatten())


def taken(kept: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    return kept.rewards, kept.dones.flatten()


def unread(kept: SimpleNamespace, best: torch.Tensor) -> torch.Tensor:
    rewards, dones = taken(kept)  # noqa: RUF059 - the mistake that is to be found
    return rewards + 0.99 * best


def read_elsewhere(kept: SimpleNamespace, best: torch.Tensor) -> torch.Tensor:
    rewards, dones = taken(kept)
    best = best.masked_fill(dones.bool(), 0.0)
    return rewards + 0.99 * best


def masked_by_another(kept: SimpleNamespace, best: torch.Tensor) -> torch.Tensor:
    """`dones` counts the limit of time as well; the real ends are another part."""
    rewards, dones = taken(kept)  # noqa: RUF059 - on purpose
    goes_on = (kept.rewards > -1).float()
    return rewards + 0.99 * torch.min(best * goes_on, 2 * best * goes_on)


def written_over(kept: SimpleNamespace, best: torch.Tensor) -> torch.Tensor:
    rewards, dones = taken(kept)  # noqa: RUF059 - on purpose
    target = rewards + 0.99 * best
    ends = kept.rewards < -1
    target[ends] = rewards[ends]
    return target


def test_an_unread_flag_of_ends() -> None:
    assert "ND140" in codes(unread)


@pytest.mark.parametrize("target", [read_elsewhere, masked_by_another, written_over, flat, turned])
def test_a_flag_that_is_read_or_not_wanted(target: Target) -> None:
    assert "ND140" not in codes(target)


@pytest.mark.parametrize(
    ("line", "read", "found"),
    [
        ("s, r, truncated, terminated, _ = env.step(a)", "keep(terminated)", True),
        ("s, r, is_truncated, is_terminated, info = env.step(a)", "keep(is_terminated)", True),
        ("s, r, terminated, truncated, _ = env.step(a)", "keep(terminated)", False),
        ("s, r, truncated, terminated, _ = env.step(a)", "keep(terminated or truncated)", False),
        ("s, r, truncated, terminated, _ = env.read(a)", "keep(terminated)", False),
        ("s, r, truncated, terminated = env.step(a)", "keep(terminated)", False),
    ],
)
def test_swapped_names(line: str, read: str, found: bool, tmp_path: Path) -> None:
    file = tmp_path / "rollout.py"
    file.write_text(f"def play(env, a, keep):\n    {line}\n    {read}\n")
    assert [place.line for place in swapped_ends(str(file), all_ran)] == ([2] if found else [])
    assert swapped_ends(str(file), lambda scope: {}) == []  # a function that nobody calls
    file = tmp_path / "maybe.py"
    file.write_text(f"def play(env, a, keep):\n    if flag:\n        {line}\n    {read}\n")
    assert swapped_ends(str(file), all_ran) == []  # it may not have run
    own = "class Env:\n    def step(self, a):\n        return self.s, 0.0, self.t > 9, self.at_end, {}\n"
    file = tmp_path / "own.py"
    file.write_text(f"{own}def play(env, a, keep):\n    {line}\n    {read}\n")
    assert swapped_ends(str(file), all_ran) == []


def all_ran(scope: Scope) -> dict[int, str]:
    """Of functions that ran."""
    return ran(scope, ast.Module([], []), {})


@pytest.mark.parametrize(
    ("line", "behind", "found"),
    [
        ("memory.push(s, a, r, after)", "s = after", True),
        ("memory.append((s, a, r, after))", "s = after", True),
        ("memory.append((s.copy(), a))", "s = after", False),
        ("memory.push(s, a, r, after)", "s = env.reset()", False),
        ("show(s, after)", "s = after", False),
    ],
)
def test_where_steps_are_remembered(line: str, behind: str, found: bool, tmp_path: Path) -> None:
    file = tmp_path / "memory.py"
    start = "def play(env, memory, show, s, a):\n    after, r, end, cut, info = env.step(a)\n"
    file.write_text(f"{start}    {line}\n    {behind}\n")
    assert [place.line for place in remembered_steps(str(file))] == ([3] if found else [])
