"""What a process says of itself when it is asked, or just before it ends itself: the user's lines
and the module it is in."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import asdict
from types import FrameType
from typing import Any

from nanodoc.facts.failure import Failure
from nanodoc.facts.source import SourceSpan
from nanodoc.heartbeat.trail import TrailWriter
from nanodoc.trace.files import USER, frame_kind

# Real-time signals, which nothing else is known to use; where there are none, a hang has no line.
ASK = int(signal.SIGRTMAX) - 1 if hasattr(signal, "SIGRTMAX") else None
"""The main thread says where it is, once the interpreter gets to it."""
DUMP = int(signal.SIGRTMAX) - 2 if hasattr(signal, "SIGRTMAX") else None
"""The stack is written by the signal handler itself, whatever the process waits for."""
CONCLUDE = int(signal.SIGRTMAX) - 3 if hasattr(signal, "SIGRTMAX") else None
"""The report of what was seen is to be made now: the process is about to be ended."""

_COLLECTIVES = os.path.join("torch", "distributed") + os.sep
_DDP = os.path.join("torch", "nn", "parallel", "distributed.py")


def waits_for_ranks(file: str, function: str) -> bool:
    """Where in torch a process waits for the other ranks: in a collective, or where DDP broadcasts
    buffers before the forward pass. DDP's own forward is none: it calls the model."""
    return _COLLECTIVES in file or (
        file.endswith(_DDP) and function.startswith(("_distributed_broadcast", "_sync_"))
    )


def speak_before_the_end(crumbs: TrailWriter, ask: int | None) -> None:
    """os._exit and a signal to oneself leave no trace of where they were called: it is told before.
    `ask` is the signal that asks where the process is."""
    owner, leave = os.getpid(), os._exit

    def _exit(status: int) -> Any:
        # a forked worker ends this way as well
        if os.getpid() == owner and threading.current_thread() is threading.main_thread():
            before = crumbs.trail().words or {}  # of a second run, which knows more
            crumbs.say(
                {
                    "said": "exit",
                    "item": before.get("item"),
                    "call": "os._exit",
                    **where(sys._getframe(1), crumbs),
                }
            )
        leave(status)

    kill = os.kill

    def _kill(number: int, sign: int) -> None:
        if (
            number == owner
            and os.getpid() == owner
            and sign in (signal.SIGKILL, signal.SIGABRT, signal.SIGTERM)
        ):
            before = crumbs.trail().words or {}
            crumbs.say(
                {
                    "said": "exit",
                    "item": before.get("item"),
                    "call": "os.kill",
                    **where(sys._getframe(1), crumbs),
                }
            )
        kill(number, sign)
        # a handler took it: these were not the last words
        if number == owner and os.getpid() == owner:
            crumbs.say({})

    os._exit, os.kill = _exit, _kill
    if ask is not None:

        def answer(number: int, frame: FrameType | None) -> None:
            before = crumbs.trail().words or {}  # of a second run, which knows more
            crumbs.say(
                {
                    "said": "asked",
                    "item": before.get("item"),
                    "call": before.get("call"),
                    **where(frame, crumbs),
                }
            )

        signal.signal(ask, answer)


def where(frame: FrameType | None, crumbs: TrailWriter) -> dict[str, Any]:
    """The user's frames, outermost first, and the innermost module of the model among all frames;
    whether it waits for other ranks."""
    from nanodoc.trace.spans import resolve

    frames: list[dict[str, Any]] = []
    waits = False
    module: tuple[str, str] | None = None
    while frame is not None:
        module = (
            module or crumbs.module_of(frame.f_locals.get("self"))
            if frame.f_code.co_argcount
            else module
        )
        waits = waits or (
            not frames and waits_for_ranks(frame.f_code.co_filename, frame.f_code.co_name)
        )
        if frame_kind(frame.f_code.co_filename) == USER:
            span = resolve(frame.f_code, frame.f_lasti)
            if span is not None:
                frames.insert(0, asdict(span))
        frame = frame.f_back
    return {"frames": frames, "module": module, "waits": waits}


def note_failure(crumbs: TrailWriter, failure: Failure, step: int | None) -> None:
    """The exception that ended the run: it is known even if the examination of it comes to
    nothing."""
    before = crumbs.trail().words or {}  # of a second run, which may know the sample
    crumbs.say(
        {"said": "failure", "failure": asdict(failure), "step": step, "item": before.get("item")}
    )


def spans_of(words: Any) -> tuple[SourceSpan, ...]:
    """The frames of words said by `where`; empty where the words are not what they should be."""
    try:
        return tuple(SourceSpan(**word) for word in words)
    except TypeError:
        return ()


def failure_of(words: Any) -> Failure | None:
    """The failure noted by `note_failure`."""
    try:
        said = dict(words["failure"])
        return Failure(
            **{**said, "frames": spans_of(said["frames"]), "notes": tuple(said["notes"])}
        )
    except (TypeError, KeyError, ValueError):
        return None
