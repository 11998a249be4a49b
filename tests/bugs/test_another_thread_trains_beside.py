"""A thread of the training's own that steps another optimizer all the while: nanodoc looked at the
gradients of the watched model from that thread, while the training cleared them, which ended the
process with SIGSEGV."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import nanodoc

SCRIPT = """
import threading

import torch

errors, over = [], threading.Event()


def beside():
    other = torch.nn.Linear(2, 1)
    aside = torch.optim.SGD(other.parameters(), lr=1e-3)
    while not over.is_set():
        try:
            other(torch.ones(1, 2)).sum().backward()
            aside.step()
        except Exception as error:
            errors.append(error)


net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
thread = threading.Thread(target=beside)
for step in range(1500):
    x = torch.randn(8, 4)
    if step == 5:
        thread.start()
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
over.set()
thread.join()
print("errors", len(errors))
"""


def test_the_training_goes_on_and_no_error_is_in_the_thread(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "errors 0" in done.stdout
    assert "steps          1500\n" in done.stderr
