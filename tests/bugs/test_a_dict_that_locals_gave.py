"""Found by measuring: reading the variables of a loop's function filled the dict that the function
had got by `locals()`, so that a configuration kept that way held the batch and the loss."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from nanodoc.trace.frame_variables import variables_of_frame
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]

SCRIPT = """
import torch

def main(rate=0.1, width=4):
    config = locals()
    torch.manual_seed(0)
    model = torch.nn.Linear(width, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(8):
        batch = torch.randn(8, width)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(sorted(config))

main()
"""


def test_a_configuration_kept_by_locals_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    watched(path)
    assert capsys.readouterr().out == "['rate', 'width']\n"


def test_a_dict_that_nobody_kept_holds_nothing() -> None:
    class Loss:
        pass

    loss = Loss()
    known = weakref.ref(loss)
    assert variables_of_frame(sys._getframe())["loss"] is loss
    del loss
    assert known() is None


def test_locals_asked_again_knows_what_is_new() -> None:
    first = 1
    kept = locals()
    second = 2
    assert variables_of_frame(sys._getframe())["second"] == second
    assert "second" not in kept
    assert locals()["second"] == second
    assert first


def test_a_function_that_is_traced_keeps_its_variables() -> None:
    def stepped() -> int:
        first = 1
        second = first + 1
        return first + second

    def traced(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is stepped.__code__:
            variables_of_frame(frame)
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        assert stepped() == 3
    finally:
        sys.settrace(before)
