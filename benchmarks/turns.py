"""Two trainings that take turns of a few steps, so that a slow phase of the machine hits both: each
reads a byte from its pipe before a turn, and writes one into the other's behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_MOST_TURNS = 1000
_LONGEST = 600.0  # seconds


def in_turns(
    commands: Sequence[Sequence[str]], folder: Path, environment: dict[str, str]
) -> list[Any]:
    """What two commands of Python's write as JSON. Each is run in `folder`, with three arguments
    more: its pipe, the other's, and the file to write. nanodoc may find something in a training of
    noise (exit code 1): the time is what counts. Raises `RuntimeError` where one fails."""
    pipes = [folder / f"{number}.turn" for number in range(2)]
    files = [folder / f"{number}.json" for number in range(2)]
    for pipe in pipes:
        os.mkfifo(pipe)
    # a pipe that nobody has open forgets what was written
    held = [os.open(pipe, os.O_RDWR) for pipe in pipes]
    running = [
        subprocess.Popen(
            [sys.executable, *command, pipes[i].name, pipes[1 - i].name, files[i].name],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, command in enumerate(commands)
    ]
    os.write(held[0], b"1")
    try:
        for number, process in enumerate(running):
            _, told = process.communicate(timeout=_LONGEST)
            os.write(held[1 - number], b"1" * _MOST_TURNS)  # nobody waits for one that has ended
            if process.returncode not in (0, 1) or not files[number].exists():
                raise RuntimeError(f"{' '.join(commands[number])} failed:\n{told[-2000:]}")
    finally:
        for process in running:
            process.kill()
            process.wait()
        for descriptor, pipe in zip(held, pipes, strict=True):
            os.close(descriptor)
            pipe.unlink()
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for file in files:
        file.unlink()
    return found
