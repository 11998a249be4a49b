"""The command line in a process of its own that need not import torch first: `Warm` keeps a process
that has, and forks it for each command. The child of a supervised run is forked in the same way;
everything else is as in a fresh process."""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import multiprocessing.process
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PYTHON = "python"
"""In the place of a command: the script behind it is run without nanodoc."""
_exit = os._exit  # nanodoc notes who calls it in a training
_LONGEST = 300.0  # seconds of a command
_ROOT = Path(__file__).resolve().parent.parent


class Warm:
    """The process that is forked; one for all tests of a worker. It also imports `modules`."""

    def __init__(self, *modules: str) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(theirs.fileno()), *modules],
            pass_fds=(theirs.fileno(),),
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._socket = ours
        self._answers = ours.makefile("r", encoding="utf-8")
        atexit.register(self.close)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._process.wait()

    def run(
        self,
        arguments: tuple[str, ...],
        cwd: Path,
        stdin: str | None,
        environment: Mapping[str, str] | None = None,
        ranks: int = 1,
    ) -> tuple[int, bytes, bytes]:
        """(exit code, stdout, stderr). `environment` is added to this process's. Of several
        `ranks` each is a command of its own, as under torchrun, and the code the largest."""
        with contextlib.ExitStack() as around:
            streams = [around.enter_context(tempfile.TemporaryFile("w+b")) for _ in range(3)]
            streams[0].write((stdin or "").encode())
            streams[0].seek(0)
            told = {
                "arguments": arguments,
                "cwd": str(cwd),
                "environment": {**os.environ, **(environment or {})},
                "ranks": ranks,
            }
            body = json.dumps(told).encode()
            numbers = array.array("i", [stream.fileno() for stream in streams])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]
            self._socket.sendmsg([len(body).to_bytes(4, "little")], rights)
            self._socket.sendall(body)
            code = int(self._answers.readline())
            for stream in streams[1:]:
                stream.seek(0)
            out, err = (stream.read() for stream in streams[1:])
        return code, out, err


def _serve(connection: socket.socket) -> None:
    while True:
        numbers = array.array("i")
        head, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * numbers.itemsize))
        if not head:
            return
        for _, _, data in ancillary:
            numbers.frombytes(data)
        body = b""
        while len(body) < int.from_bytes(head, "little"):
            body += connection.recv(1 << 16)
        told = json.loads(body)
        started = []
        store, port = _store() if told["ranks"] > 1 else (0, 0)
        for rank in _ranks(told["ranks"], port):
            started.append(os.fork())
            if started[-1] == 0:
                connection.close()
                told["environment"].update(rank)
                _command(told, list(numbers))
        for descriptor in numbers:
            os.close(descriptor)
        code = max(_codes_of(started[:]), key=abs)
        if len(started) > 1 and code < 0:  # of a rank that a signal ended: torchrun's own code
            code = 1
        connection.sendall(f"{code}\n".encode())
        if store:
            os.kill(store, signal.SIGKILL)
            os.waitpid(store, 0)


def _codes_of(running: list[int]) -> list[int]:
    """How the commands ended. Where one of several fails, the others are asked to end, as torchrun
    does; what takes too long is ended, so that its test fails."""
    until = time.monotonic() + _LONGEST
    codes: list[int] = []
    while running:
        failed = any(codes)
        for number in running[:]:
            ended, status = os.waitpid(number, os.WNOHANG)
            if ended:
                running.remove(number)
                codes.append(os.waitstatus_to_exitcode(status))
        if any(codes) and not failed:
            _tell(running, os.kill, signal.SIGTERM)
        if time.monotonic() > until:
            _tell(running, os.killpg, signal.SIGKILL)
        time.sleep(0.005)
    return codes


def _tell(numbers: list[int], kill: Callable[[int, int], None], sign: signal.Signals) -> None:
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            kill(number, sign)


def _store() -> tuple[int, int]:
    """A process that keeps the store of a group until it is killed, as torchrun's does, and its
    port. The process that is forked for every command must not have the store's threads."""
    reading, writing = os.pipe()
    number = os.fork()
    if number == 0:
        from torch.distributed import TCPStore

        from nanodoc.supervise.parent_death import end_with_parent

        end_with_parent()
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, str(store.port).encode())
        while True:
            signal.pause()
    os.close(writing)
    port = int(os.read(reading, 8))
    os.close(reading)
    return number, port


def _ranks(size: int, port: int) -> list[dict[str, str]]:
    """What torchrun tells each of its processes of the group."""
    if size == 1:
        return [{}]
    group = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    return [{**group, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(size)]


def _command(told: dict[str, Any], streams: list[int]) -> None:
    """In the forked process: becomes the command, and never returns."""
    os.setsid()
    for standard, descriptor in enumerate(streams):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["cwd"])
    multiprocessing.process.ORIGINAL_DIR = told["cwd"]  # where processes that are spawned begin
    _open_streams()
    sys.argv = ["nanodoc", *told["arguments"]]
    sys.path[0] = told["cwd"]
    if told["arguments"][0] == PYTHON:
        script = told["arguments"][1]
        sys.argv = told["arguments"][1:]
        # what a script leaves behind lives until its process ends, with threads that use it
        left: list[Any] = []
        _end(lambda: left.append(runpy.run_path(script, run_name="__main__")))
    from nanodoc.__main__ import main
    from nanodoc.supervise import start

    start.subprocess = _Forking()  # type: ignore[assignment]  # what it asks of the module
    _end(main)


def _open_streams() -> None:
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, mode, closefd=False, encoding=encoding) for n, mode in enumerate("rww")
    )


def _end(main: Any) -> None:
    """Runs it, and ends the process as the interpreter would."""
    code: Any = 1
    try:
        main()
        code = 0
    except SystemExit as error:
        code = error.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # as Py_FinalizeEx does
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _exit(code if isinstance(code, int) else 0 if code is None else 1)


class _Forking:
    """`subprocess`, for the supervisor: the child that imports torch is forked instead."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: list[str], **options: Any) -> Any:
        start = next((i for i, part in enumerate(command) if part.endswith("_child_start.py")), 0)
        if not start:
            return subprocess.Popen(command, **options)
        number = os.fork()
        if number:
            with contextlib.suppress(OSError):  # both do it: whichever comes first
                os.setpgid(number, number)
            return SimpleNamespace(pid=number, returncode=None)
        os.setpgid(0, 0)
        _become_child(command[start:], options)
        raise AssertionError


def _become_child(command: list[str], options: dict[str, Any]) -> None:
    for sign in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(sign) != signal.SIG_IGN:
            signal.signal(sign, signal.SIG_DFL)
    for sign in (signal.SIGQUIT, signal.SIGWINCH):
        signal.signal(sign, signal.SIG_DFL)
    if options["stdin"] is not None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    kept = {0, 1, 2, *options["pass_fds"]}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
    os.environ.clear()
    os.environ.update(options["env"])
    _open_streams()
    sys.argv = command
    atexit._clear()
    from nanodoc.pipeline import _child_start

    _end(_child_start.main)


def _warmed(modules: Sequence[str]) -> None:
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel
    import torch.optim
    import torch.utils.data

    import nanodoc.cli.app
    import nanodoc.pipeline.check_grad_graph
    import nanodoc.pipeline.child
    import nanodoc.pipeline.replay
    import nanodoc.pipeline.run
    import nanodoc.pipeline.script
    import nanodoc.rules.catalogue  # noqa: F401

    for module in modules:
        importlib.import_module(module)
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # no collection of a forked process need look at what is loaded, and copy its pages


if __name__ == "__main__":
    _warmed(sys.argv[2:])
    _serve(socket.socket(fileno=int(sys.argv[1])))
