"""A script wraps a function that nanodoc listens to, and goes on using what it wrapped; a thread of
its own uses functions that the script has replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.instrument import taps
from tests.helpers import nanodoc, python

LOOP = """
import torch, warnings
from torch import nn
torch.manual_seed(0)
SETUP
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(40):
    model.train()
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
    BODY
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item(), sum(p.double().abs().sum().item() for p in model.parameters()), END)
"""
WRAPPED = """
_train = nn.Module.train
def train(self, mode=True):
    return _train(self, mode)
nn.Module.train = train
"""
IN_STEP = """
said = []
"""
WARNS = """if step == 0:
        original = warnings.showwarning
        def show(message, *rest, **named):
            said.append(str(message))
        warnings.showwarning = show
    warnings.warn(f"step {step // 10}")"""
THREAD = """
import threading, time
_zeros = torch.zeros
def zeros(*size):
    return _zeros(*size) + 1
torch.zeros = zeros
wrong, over = [], False
def work():
    while not over:
        if torch.zeros(1).item() != 1:
            wrong.append(1)
thread = threading.Thread(target=work)
thread.start()
"""
CASES = {
    "wrapped": (WRAPPED, "pass", "0"),
    "wrapped in the first step": (IN_STEP, WARNS, "said"),
    "replaced for a thread": (
        THREAD,
        "pass",
        "[globals().update(over=True), thread.join(), wrong][2]",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_trains_as_without_nanodoc(case: str, tmp_path: Path) -> None:
    setup, body, end = CASES[case]
    text = LOOP.replace("SETUP", setup).replace("BODY", body).replace("END", end)
    (tmp_path / "train.py").write_text(text)
    bare = python("train.py", cwd=tmp_path)
    assert bare.returncode == 0, bare.stderr
    done = nanodoc("run", "--quiet", "--output", "report.json", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == bare.stdout


@pytest.mark.parametrize("tap", taps.TABLE.values(), ids=lambda tap: f"{tap.owner}.{tap.name}")
def test_a_wrapper_around_ours_never_calls_itself(tap: taps.Tap) -> None:
    """Listen, wrap, stop listening, listen again: the wrapped wrapper was given the new chain to
    call, in which it stands itself."""
    original, calls = tap.now, []

    def listener(below: object) -> object:
        def listened(*args: object, **kwargs: object) -> object:
            calls.append("ours")
            return below(*args, **kwargs)  # type: ignore[operator]  # the original

        return listened

    undo = tap.listen(lambda below: lambda *args, **kwargs: below(*args, **kwargs))
    ours = tap.now
    tap.put(lambda *args, **kwargs: (calls.append("theirs"), ours(*args, **kwargs))[1])
    undo()
    again = tap.listen(listener)  # type: ignore[arg-type]  # any function
    try:
        with pytest.raises((TypeError, RuntimeError, ValueError, AttributeError)):
            tap.now(*[None] * 9, no_such_argument=None)
    finally:
        again()
        tap.put(original)
    assert calls == ["ours", "theirs"]
