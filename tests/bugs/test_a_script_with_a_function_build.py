"""A script whose own function is called `build` was imported as a recipe: it trained to its end,
unwatched, and was then told that `build()` returned something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.supervise.launch import is_script
from tests.helpers import nanodoc

LOOP = """
import torch

def build():
    return torch.randn(64, 8)

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = build()
for step in range(20):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
print("trained")
"""


def test_it_is_run_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    assert "step train.py:10, replay of step 0 bitwise the same" in done.stderr


def test_it_trains_in_a_function_that_it_calls(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    text = LOOP.partition("model =")[0] + "def main():\n    build().sum().backward()\n\nmain()\n"
    file.write_text(text)
    assert is_script(str(file))


@pytest.mark.parametrize(
    "text",
    [
        "def build():\n    return {}\n",
        "def build():\n    return {}\n\nif __name__ == '__main__':\n    train(build())\n",
        "def build():\n    return {}\n\ndef train():\n    build()['loss'].backward()\n",
        "def build():\n    return {}\n\nassert build() == {}\n",
        "import torch\n\ndef build():\n    return {}\n\n(torch.ones(2, requires_grad=True)).sum().backward()\n",
    ],
)
def test_a_recipe_stays_one(text: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(text)
    assert not is_script(str(file))
