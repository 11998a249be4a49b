"""A script that is typed in at a terminal: it may ask, be debugged, interrupted and stopped, as
without nanodoc."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanodoc.supervise import terminal

pytestmark = pytest.mark.slow

TRAIN = """
import time
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ASK
for step in range(STEPS):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
    if step == 5:
        print("well under way", flush=True)
print("the", "end")
"""


class Shell:
    """An interactive bash in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            os.chdir(folder)
            os.environ.update(PS1="$ ", TERM="dumb", COLUMNS="200")
            os.environ.pop("RANK", None)
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.said = ""

    def types(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def says(self, text: str, seconds: float = 60.0) -> None:
        """Waits until it does, and forgets what came before."""
        until = time.monotonic() + seconds
        while text not in self.said:
            left = until - time.monotonic()
            assert left > 0, f"{text!r} was not said: {self.said}"
            if select.select([self._terminal], [], [], left)[0]:
                self.said += os.read(self._terminal, 1 << 16).decode(errors="replace")
        self.said = self.said.split(text, 1)[1]

    def close(self) -> None:
        os.kill(self._process, signal.SIGHUP)
        os.close(self._terminal)
        os.waitpid(self._process, 0)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    found = Shell(tmp_path)
    yield found
    found.close()


def command(folder: Path, ask: str = "", steps: int = 10) -> str:
    (folder / "train.py").write_text(TRAIN.replace("ASK", ask).replace("STEPS", str(steps)))
    return f"{sys.executable} -m nanodoc run train.py; echo code=$?\n"


def test_a_script_may_ask_and_be_debugged(shell: Shell, tmp_path: Path) -> None:
    shell.types(command(tmp_path, 'print("hello", input("your name? "))\nbreakpoint()'))
    shell.says("your name? ")
    shell.types("Ada\n")
    shell.says("hello Ada")
    shell.says("(Pdb)")
    shell.types("p model.in_features * 1000\n")
    shell.says("4000")
    shell.types("continue\n")
    shell.says("verdict: nothing found")
    shell.says("code=0")
    shell.types("read line; echo the shell reads $line\nagain\n")
    shell.says("the shell reads again")


def test_an_interrupt_gives_a_partial_report(shell: Shell, tmp_path: Path) -> None:
    shell.types(command(tmp_path, steps=3000))
    shell.says("well under way")
    shell.types("\x03")
    shell.says("verdict: ")
    shell.says("code=130")
    shell.types("echo $((6 * 7))\n")
    shell.says("42")


def test_it_stops_and_goes_on(shell: Shell, tmp_path: Path) -> None:
    shell.types(command(tmp_path, steps=200))
    shell.says("well under way")
    shell.types("\x1a")
    shell.says("Stopped")
    shell.says("$ ")
    shell.types("echo $((6 * 7))\n")
    shell.says("42")
    shell.types("bg\n")
    shell.says("nanodoc run")
    shell.types("fg\n")
    shell.says("the end")
    shell.says("verdict: nothing found")
    shell.types("jobs; echo none=$?\n")
    shell.says("none=0")


def test_it_asks_when_it_is_in_front_again(shell: Shell, tmp_path: Path) -> None:
    shell.types(command(tmp_path, 'time.sleep(3)\nprint("hello", input("your name? "))'))
    time.sleep(1)
    shell.types("\x1a")
    shell.says("Stopped")
    shell.types("bg\n")
    shell.says("nanodoc run")
    shell.types("fg\n")
    shell.says("your name? ")
    shell.types("Ada\n")
    shell.says("hello Ada")
    shell.says("verdict: nothing found")


def test_what_a_launcher_starts_has_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert not terminal.is_ours()
