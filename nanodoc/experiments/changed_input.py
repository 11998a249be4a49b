"""One tensor that a call was given, changed by one of its methods: whether a call that raised then
goes through."""

from __future__ import annotations

from typing import Any

import torch

from nanodoc.diagnosis.remedy import ChangeInput
from nanodoc.experiments.call_site import Applied, AtCall, Patch, operator_of
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call
from nanodoc.vocabulary.names import canonical

look_through(__file__)


def input_changed(remedy: ChangeInput, where: SourceSpan, applied: Applied) -> Patch:
    """The calls of the remedy's op at this place get the changed tensor, where they raise without.
    A change that would lose something of the values is not made."""

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if operator_of(func) != canonical(remedy.op):
            return call(func, *args, **kwargs)
        try:
            return call(func, *args, **kwargs)
        except (RuntimeError, ValueError, IndexError):
            given = _changed(remedy, args)
            if given is None:
                raise
        applied.yes = True
        return call(func, *given, **kwargs)

    return AtCall(where, change)


def _changed(remedy: ChangeInput, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments with the changed one among them."""
    at = remedy.position
    old = args[at] if at < len(args) else None
    if not isinstance(old, torch.Tensor):
        return None
    try:
        new = getattr(old, remedy.method)(*remedy.arguments)
    except (RuntimeError, ValueError, IndexError):
        return None
    if remedy.method == "long" and not torch.equal(new.to(old.dtype), old):
        return None
    return (*args[:at], new, *args[at + 1 :])
