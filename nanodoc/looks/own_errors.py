"""An error of nanodoc's own costs the look that raised it, and never the report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from nanodoc.errors import NanodocError, UsageError, UserCodeError, said
from nanodoc.facts.failure_kinds import says_device_is_lost, says_worker_died

STOPPED = "stopped by an error of nanodoc's own"


def is_own(error: BaseException) -> bool:
    """An error of nanodoc's own that may be passed over: neither the user's nor one that the device
    or a loader's worker made, which is told wherever the process is.
    NANODOC_DEBUG=1 passes over none."""
    return (
        isinstance(error, Exception)
        and not isinstance(error, (NanodocError, UserCodeError))
        and not says_device_is_lost(error)
        and not says_worker_died(error)
        and not os.environ.get("NANODOC_DEBUG")
    )


def costs_one_look(error: BaseException) -> bool:
    """Whether an error may be passed over when everything about how the run ended is known already:
    all may but a wrong option. NANODOC_DEBUG=1 passes over none."""
    return not isinstance(error, UsageError) and not os.environ.get("NANODOC_DEBUG")


def own_error(error: BaseException) -> str:
    """What a report says of an error of nanodoc's own."""
    text = " ".join(said(error).split())[:120]
    return f"{STOPPED}: {type(error).__name__}: {text}"


@contextmanager
def telling(what: str, notes: list[tuple[str, str]]) -> Iterator[None]:
    """Around a look of nanodoc's: an error of its own ends that look only, and the report says
    so."""
    try:
        yield
    except Exception as error:
        if not is_own(error):
            raise
        notes.append((what, own_error(error)))
