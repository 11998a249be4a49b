"""A step that reaches a number in shared memory, as a replay buffer's own: it was never run again,
though no other process was there to share it with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc, python

SCRIPT = """
import multiprocessing
import torch


class Buffer:
    def __init__(self):
        self.written = multiprocessing.Value("i", 0)
        self.rows = torch.zeros(64, 4)

    def add(self, rows):
        with self.written.get_lock():
            at = self.written.value
            self.written.value = (at + len(rows)) % 64
        self.rows[at : at + len(rows)] = rows

    def sample(self):
        return self.rows[torch.randint(64, (16,))]


if __name__ == "__main__":
    torch.manual_seed(0)
    other = multiprocessing.get_context("fork").Process(target=__import__("time").sleep, args=(60,))
    {begin}
    model, buffer = torch.nn.Linear(4, 1), Buffer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        buffer.add(torch.randn(16, 4))
        loss = (model(buffer.sample()) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item(), buffer.written.value)
    {end}
"""


@pytest.mark.parametrize("shared", [False, True])
def test_a_number_that_nobody_else_counts_with(tmp_path: Path, shared: bool) -> None:
    begin, end = ("other.start()", "other.terminate()") if shared else ("pass", "pass")
    (tmp_path / "train.py").write_text(SCRIPT.format(begin=begin, end=end))
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.stdout == python("train.py", cwd=tmp_path).stdout
    assert ("replay of step 0 bitwise the same" in done.stderr) == (not shared)
