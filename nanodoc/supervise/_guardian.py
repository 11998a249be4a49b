"""A small process beside a training: where nanodoc is ended by SIGKILL, and can end nothing itself,
it ends the training and everything that the training had started. Its standard input tells it the
training's number, and then that there is nothing to do; where that ends before, nanodoc is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

_ROUNDS = 20  # a process that starts others while it is being stopped is looked at again


def end_tree(root: int) -> None:
    """Ends a process, its group and, where /proc tells of them, all processes that it or they have
    started, also those in sessions of their own. Each is stopped before any is ended, so that none
    starts another meanwhile."""
    known: set[int] = set()
    for _ in range(_ROUNDS):
        found = _tree(root) - known - {os.getpid()}
        for number in found:
            _send(number, signal.SIGSTOP)
        known |= found
        if not found:
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)
    for number in known:
        _send(number, signal.SIGKILL)


def _tree(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return set()
    for number in numbers:
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{number}/stat", "rb") as file:
                # the name of the program, in parentheses, may hold anything
                parent = int(file.read().rsplit(b")", 1)[1].split()[1])
            children.setdefault(parent, []).append(number)
    found: set[int] = set()
    waiting = [root] if any(root in group for group in children.values()) else []
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += children.get(number, [])
    return found


def _send(number: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(number, sign)


def main() -> None:
    """Waits, and ends what is left of the process."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    number, _, done = sys.stdin.buffer.read().partition(b"\n")
    if number and not done:
        end_tree(int(number))


if __name__ == "__main__":
    main()
