"""The child's first lines: it finds the modules its parent finds, imports what is slow to import
while the parent reads the command line, and goes on in `nanodoc.pipeline.child`. Where nobody
guards it, it dies with its parent."""

import ctypes
import gc
import io
import json
import os
import signal
import sys

_PDEATHSIG = 1  # PR_SET_PDEATHSIG of prctl(2)


def main() -> None:
    events, page, job, stack, asked, parent = (int(text) for text in sys.argv[1:7])
    if sys.platform == "linux":
        _dies_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    # a tenth of the time of so many imports goes into looking at objects that stay
    gc.disable()
    with os.fdopen(job, "rb") as file:
        first = file.readline()
        if not first:
            os._exit(1)
        sys.path[:] = json.loads(first)["path"]
        from nanodoc.pipeline.child import begin, work

        sender, trail = begin(events, page, stack, asked)
        second = file.readline()
        if not second:  # the command line was wrong
            os._exit(1)
        told = json.loads(second)
        rest = file.read()
    if told["guarded"] and sys.platform == "linux":
        _dies_with_parent(0)
    sys.path[:] = told["path"]
    sys.argv[:] = told["argv"]
    if told["to_stderr"]:
        _print_to_stderr()
    if told["silent"]:  # the terminal's input is another group's
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.exit(work(rest, sender, trail))


def _dies_with_parent(number: int) -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, number)


def _print_to_stderr() -> None:
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):  # None where it is closed
        sys.stdout.reconfigure(line_buffering=os.isatty(1))


if __name__ == "__main__":
    main()
