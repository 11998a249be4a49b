"""Found by review: an error of nanodoc's own, while this process had copies in the place of weights
that others share, left the copies there, and the script trained on by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nanodoc.errors import InternalError
from nanodoc.loop.script_engine import ScriptEngine
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]

SCRIPT = """
import torch
from pathlib import Path

torch.manual_seed(0)
model = torch.nn.Linear(3, 1).share_memory()
shared = model.weight.detach()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = model(torch.randn(8, 3)).square().mean()
    if step == 4:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
Path("after.txt").write_text(f"{model.weight.is_shared()} {model.weight.data_ptr() == shared.data_ptr()}")
"""


def test_the_script_goes_on_in_the_memory_it_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> None:
        raise ZeroDivisionError("of nanodoc's own")

    monkeypatch.setattr(ScriptEngine, "_end", breaks)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    with pytest.raises(InternalError, match="of nanodoc's own"):
        watched(path)
    assert (tmp_path / "after.txt").read_text() == "True True"
