"""The frames table: every module call with the ranges of what went in and out, next to what
transformers' tool prints."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nanodoc
from nanodoc import Recipe
from nanodoc.facts.frames import Frame, FrameTable
from nanodoc.measure.frames import FrameProbe
from nanodoc.report.frames import frames_text
from nanodoc.watchers.requested_steps import LookOptions
from tests.helpers import run_engine

Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    logits: torch.Tensor
    states: tuple[torch.Tensor, ...]
    note: str = "a text"


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), -2.0))

    def forward(
        self, x: torch.Tensor, *, mask: torch.Tensor | None = None, extras: Any = None
    ) -> Output:
        y = x * self.weight
        return Output(logits=y, states=(y + 1, y - 1))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.relu = Inner(), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> Pair:
        out = self.inner(x, mask=x > 0, extras={"scale": torch.tensor(3)})
        return Pair(left=self.relu(out.states[1]), right=[out.logits, None])


def table(model: nn.Module, *inputs: Any, **options: Any) -> FrameTable:
    probe = FrameProbe(model, **options)
    with probe.listening(), probe:
        model(*inputs)
    return probe.finish(0, "asked for", 100)


def tensors(frame: Frame) -> dict[str, tuple[float | None, float | None]]:
    return {t.role: (t.absmin, t.absmax) for t in frame.tensors}


def test_keywords_dataclasses_and_nested_outputs() -> None:
    inner, relu, outer = table(Outer(), torch.tensor([[1.0, -2.0, 4.0]])).frames
    assert (inner.module, relu.module, outer.module) == ("inner", "relu", "")
    assert tensors(inner) == {
        "weight": (2.0, 2.0),
        "input[0]": (1.0, 4.0),
        "mask": (None, None),
        "extras.scale": (3.0, 3.0),
        "output.logits": (2.0, 8.0),
        "output.states[0]": (1.0, 7.0),
        "output.states[1]": (3.0, 9.0),
    }
    # the input of a module that writes to it is measured before the call
    assert tensors(relu) == {"input[0]": (3.0, 9.0), "output": (0.0, 3.0)}
    assert tensors(outer) == {
        "input[0]": (1.0, 4.0),
        "output.left": (0.0, 3.0),
        "output.right[0]": (2.0, 8.0),
    }


def test_non_finite_elements_are_counted() -> None:
    class Log(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x)

    (frame,) = table(Log(), torch.tensor([-1.0, -2.0, 0.0, 1.0])).frames
    (_, out) = frame.tensors
    assert (out.nan, out.inf, frame.nonfinite) == (2, 1, 3)
    assert math.isnan(out.absmax or 0.0)


def test_the_path_to_the_first_bad_output() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)).half()
    with torch.no_grad():
        for layer, factor in zip(model, (30.0, 300.0, 3000.0), strict=True):
            layer.weight.copy_(torch.eye(4) * factor)
            layer.bias.zero_()
    frames = table(model, torch.ones(2, 4).half())
    assert frames.path() == (("0", 30.0), ("1", 9000.0), ("2", math.inf))
    bad = frames.first_bad()
    assert bad is not None
    assert bad.module == "2"
    text = frames_text(frames).plain
    assert "growth: 30 (0) → 9.00e+03 (1) → inf (2)" in text
    assert "7.3x" in text  # 65504 / 9000


def test_only_the_modules_asked_for() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))
    assert [f.module for f in table(model, torch.ones(1, 2), prefix="0").frames] == [
        "0.0",
        "0.1",
        "0",
    ]


def test_an_exception_leaves_the_frames_before_it_and_no_hooks() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3))
    probe = FrameProbe(model)
    with pytest.raises(RuntimeError), probe:
        model(torch.ones(1, 2))
    assert [f.module for f in probe.finish(0, "it failed", 100).frames] == ["0"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_numbers_are_those_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    debug_utils = pytest.importorskip("transformers.debug_utils")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    mine = table(model, x)
    debug_utils.DebugUnderflowOverflow(model, trace_batch_nums=[0])
    model(x)
    printed = capsys.readouterr().out
    for frame in mine.frames:
        for tensor in frame.tensors:
            assert f"{tensor.absmin:8.2e} {tensor.absmax:8.2e} {tensor.role}" in printed, tensor


def test_probes_are_in_the_table() -> None:
    class Probed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nanodoc.probe(self.linear(x), "after linear").relu()

    linear, probe, whole = table(Probed(), torch.ones(1, 2)).frames
    assert (linear.module, probe.module, probe.module_type, whole.module_type) == (
        "linear",
        "after linear",
        "",
        "Probed",
    )
    assert probe.tensors[0].absmax == linear.tensors[-1].absmax


def overflowing() -> Recipe:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with torch.no_grad():
        model[2].weight.mul_(4e5)

    def loss_fn(model: Any, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).float().mean()  # type: ignore[no-any-return]

    return Recipe(
        model=model,
        loss_fn=loss_fn,
        data=[torch.ones(2, 4)],
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
    )


def test_the_failing_step_is_shown_with_the_ops_of_the_culprit(tmp_path: Path) -> None:
    outcome = run_engine(
        overflowing(), 3, amp_dtype=torch.float16, looks=LookOptions(frames=True, folder=tmp_path)
    )
    (frames,) = outcome.frames
    assert frames.why == "it failed"
    assert frames.module == "2"
    assert any("mm" in op.op for op in frames.ops)
    assert frames.path()[-1] == ("2", math.inf)
    shares = [
        t.flushed
        for f in frames.frames
        for t in f.tensors
        if t.role == "output" and t.dtype == "float16"
    ]
    assert shares
    assert all(share is not None for share in shares[:2])


def test_steps_asked_for_are_watched_as_they_run(tmp_path: Path) -> None:
    calls: list[int] = []

    def loss_fn(model: Any, batch: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return model(batch).pow(2).mean()  # type: ignore[no-any-return]

    model = nn.Linear(3, 3)
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=[torch.ones(2, 3)],
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
    )
    counts: list[int] = []
    looks = LookOptions(frames=True, steps=(1, 3), folder=tmp_path)
    outcome = run_engine(
        recipe, 5, looks=looks, progress=lambda step, loss: counts.append(len(calls))
    )
    assert counts == [1, 2, 3, 4, 5]
    assert [frames.step for frames in outcome.frames] == [1, 3]
    assert list(tmp_path.iterdir()) == []  # the ops are written where no frames are wanted


def test_a_healthy_run_shows_its_last_batch(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: m(b).pow(2).mean(),
        data=[torch.ones(2, 3)],
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
    )
    (frames,) = run_engine(recipe, 4, looks=LookOptions(frames=True, folder=tmp_path)).frames
    assert frames.step == 3
    assert "the last batch" in frames.why
