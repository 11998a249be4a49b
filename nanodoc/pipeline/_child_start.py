"""The child's first lines: it finds the modules its parent finds, and goes on in
`nanodoc.pipeline.child`. Where nobody guards it, it dies with its parent."""

import ctypes
import json
import os
import signal
import sys


def main() -> None:
    events, page, job, stack, parent = (int(text) for text in sys.argv[1:6])
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
    with os.fdopen(job, "rb") as file:
        told = json.loads(file.readline())
        rest = file.read()
    sys.path[:] = told["path"]
    sys.argv[:] = told["argv"]
    from nanodoc.pipeline.child import work

    sys.exit(work(rest, events, page, stack))


if __name__ == "__main__":
    main()
