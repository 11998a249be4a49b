"""`--nproc N`: starts the ranks of one host itself, as torchrun would. The parent keeps the store,
so any rank may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from nanodoc.instrument.torch_private import TCPStore

_POLL_SECONDS = 0.1
# what a rank may still take when another one has ended: longer than any of its own waits
_AFTER_SECONDS = 15.0
_ADDRESS = "127.0.0.1"


def run_ranks(number: int, arguments: Sequence[str]) -> int:
    """The exit code of the nanodoc command with these arguments, run by `number` processes of this
    Python; none of them is left behind."""
    store = TCPStore(_ADDRESS, 0, is_master=True, wait_for_workers=False)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(number):
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "nanodoc", *arguments],
                    env=_environment(rank, number, store.port),
                )
            )
        return _awaited(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _environment(rank: int, number: int, port: int) -> dict[str, str]:
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": number,
        "LOCAL_WORLD_SIZE": number,
        "MASTER_ADDR": _ADDRESS,
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    # as torchrun does: several ranks with all cores each would only get in each other's way
    return {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        **{key: str(value) for key, value in variables.items()},
    }


def _awaited(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Waits for all of them; once one has failed, or a signal came, the others have a bounded time
    to report it."""
    ended: float | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        ended = ended or time.monotonic()
        for process in processes:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    while any(process.poll() is None for process in processes):
        if ended is None and any(process.poll() for process in processes):
            ended = time.monotonic()
        if ended is not None and time.monotonic() - ended > _AFTER_SECONDS:
            break
        time.sleep(_POLL_SECONDS)
    codes = [process.poll() for process in processes]
    # a rank that was killed has a negative code: that is a failure
    return max(1 if code is None or code < 0 else code for code in codes)
