"""Trainings that take turns of a few steps, so that a slow phase of the machine hits all of them. A
file holds how many turns each may have had; what a script does with it can be done twice, since
nanodoc may run a step again."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TURNS = """
import mmap
import os
import time


class Turns:
    def __init__(self, mine):
        file = os.open("turns", os.O_RDWR)
        self.memory = mmap.mmap(file, 0)
        self.mine, self.next = mine, (mine + 1) % (len(self.memory) // 8)

    def wait(self, turn):
        while memoryview(self.memory).cast("q")[self.mine] <= turn:
            time.sleep(2e-4)

    def over(self, turn):
        memoryview(self.memory).cast("q")[self.next] = turn + 1 + (self.next == 0)
"""
"""The module `turns` of the trainings. A turn, counted from 0, is waited for, and then is over."""
_MOST_TURNS = 1 << 40
_LONGEST = 600.0  # seconds


def in_turns(
    commands: Sequence[Sequence[str]], folder: Path, environment: dict[str, str]
) -> list[Any]:
    """What commands of Python's write as JSON. Each is run in `folder`, with two arguments more:
    its number, from 0, and the file to write. nanodoc may find something in a training of noise
    (exit code 1): the time is what counts. Raises `RuntimeError` where one fails."""
    files = [folder / f"{number}.json" for number in range(len(commands))]
    (folder / "turns.py").write_text(TURNS, encoding="utf-8")
    turns = folder / "turns"
    turns.write_bytes(_packed([1, *(0 for _ in commands[1:])]))
    running = [
        subprocess.Popen(
            [sys.executable, *command, str(number), files[number].name],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, command in enumerate(commands)
    ]
    try:
        for number, process in enumerate(running):
            _, told = process.communicate(timeout=_LONGEST)
            # nobody waits for one that has ended
            with turns.open("r+b") as file:  # never shorter: the others have it mapped
                file.write(_packed([_MOST_TURNS] * len(commands)))
            if process.returncode not in (0, 1) or not files[number].exists():
                raise RuntimeError(f"{' '.join(commands[number])} failed:\n{told[-2000:]}")
    finally:
        for process in running:
            process.kill()
            process.wait()
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for written in files:
        written.unlink()
    return found


def _packed(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"{len(numbers)}q", *numbers)
