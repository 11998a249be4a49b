"""By how much a step's loss is larger than the mean over its samples, and which line makes it so: a
sum, a factor, or micro-batches whose losses are not divided by their number."""

from __future__ import annotations

import ast
import os
import sys
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import LossScale
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.trace.call_options import options_of
from nanodoc.trace.calls import plain_name
from nanodoc.trace.files import LIBRARY, USER, absolute, frame_kind, line_span
from nanodoc.trace.parsed import function_around, nodes_of
from nanodoc.trace.returned import lines_calling
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.vocabulary.calls import (
    BINARIES,
    CASTS,
    CLASSIFICATION,
    COPIES,
    FACTORS,
    REGRESSION,
    RESHAPING,
)

_SUMMING = (*CLASSIFICATION, *REGRESSION, *BINARIES, "kl_div", "sum")
_PROPORTIONAL = frozenset((*RESHAPING, *CASTS, *COPIES, "neg", "squeeze"))
_FEWEST = 4.0
"""Times the mean: rates that are too high by less are no matter of the sum."""

_Mark = tuple[float, str, Place | None, str]
"""(factor, what makes it, the user's place, the class of torch's loss that is called there)"""


_MEAN: _Mark = (1.0, "", None, "")


class LossScaleLook(TorchFunctionMode):
    """A context manager around a step that is run again; `found` then says what was seen."""

    def __init__(self) -> None:
        super().__init__()
        self._marks: dict[int, tuple[torch.Tensor, _Mark]] = {}
        self._backwards: list[tuple[_Mark | None, Place | None]] = []

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = plain_name(func)
        if name == "backward" and args:
            known = self._marks.get(id(args[0]))
            own, caller = calling_places(2)
            self._backwards.append((known[1] if known else None, caller or own))
            return call(func, *args, **kwargs)
        out = call(func, *args, **kwargs)
        scalar = isinstance(out, torch.Tensor) and out.dim() == 0 and out.requires_grad
        mark = self._mark(func, name, args, kwargs) if scalar else None
        if mark is not None:
            self._marks[id(out)] = out, mark
        return out

    def _mark(self, func: Any, name: str, args: Any, kwargs: Any) -> _Mark | None:
        first = args[0] if args else kwargs.get("input")
        if not isinstance(first, torch.Tensor):
            return None
        known = self._marks.get(id(first))
        if name == "add":
            return self._of_terms(args)
        if name in _SUMMING and first.dim():
            summed = name == "sum" or options_of(func, name, args, kwargs).get("reduction") == "sum"
            if not summed:
                return _MEAN
            own, caller = calling_places(3)
            kind = "" if name == "sum" else _criterion()
            return _averaged_over(name, first), "sum", caller or own, kind
        if name == "mean" and first.dim():
            return _MEAN
        if known is None:
            return None
        _, (factor, how, place, kind) = known
        if name in _PROPORTIONAL:
            return known[1]
        number = _number(args[1]) if len(args) > 1 else None
        if number is None or name not in FACTORS:
            return None
        changed = factor * number if name == "mul" else factor / number
        if name == "mul" and number >= _FEWEST and factor < _FEWEST:
            own, caller = calling_places(3)
            return changed, "product", caller or own, ""
        return changed, how, place, kind

    def _of_terms(self, args: Any) -> _Mark | None:
        """Of a loss of several terms, that of the one that is the largest by its kind."""
        marks = [known[1] for term in args[:2] if (known := self._marks.get(id(term)))]
        largest = max(marks, key=lambda mark: mark[0], default=None)
        if largest is None or (len(marks) < len(args[:2]) and largest[0] < _FEWEST):
            return None
        return largest

    @property
    def found(self) -> LossScale | None:
        """None where the loss is a mean, or where that can't be told."""
        marks = [mark for mark, _ in self._backwards if mark is not None]
        if not marks or len(marks) != len(self._backwards):
            return None
        factor, how, place, kind = marks[0]
        count, places = len(marks), {at for _, at in self._backwards}
        if factor >= _FEWEST and how:
            at = resolved(place)
            theirs = at is not None and frame_kind(absolute(at.file)) != USER
            line = _made_at(kind, at) or (_told_to_sum() if theirs else at)
            return LossScale(times=factor, how=how, line=line)
        if count >= _FEWEST and len(places) == 1 and 0.99 < factor < 1.01:
            return LossScale(times=float(count), how="micro-batches", line=resolved(places.pop()))
        return None


def _averaged_over(name: str, first: torch.Tensor) -> float:
    """How many terms the mean of this loss divides by: of a classification, one for each target and
    not for each class."""
    classes = first.shape[min(1, first.dim() - 1)] if name in CLASSIFICATION else 1
    return first.numel() / classes


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        plain = value.numel() == 1 and not value.requires_grad
        value = value.item() if plain else None
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return float(value) if usable else None


def _criterion() -> str:
    """The class of torch's loss that is called now; "" for a function."""
    frame, kind = sys._getframe(3), ""
    while frame is not None:
        own = frame.f_locals.get("self")
        if type(own).__module__ == "torch.nn.modules.loss":
            kind = type(own).__name__
        if frame_kind(frame.f_code.co_filename) in (USER, LIBRARY):
            return kind
        frame = frame.f_back  # type: ignore[assignment]  # typeshed: the loop's end is None
    return ""


def _told_to_sum() -> SourceSpan | None:
    """The only line of the script that gives a library the reduction of its loss:
    `Net(criterion__reduction="sum")`."""
    main = absolute(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    if not os.path.isfile(main) or frame_kind(main) != USER:
        return None
    nodes = nodes_of(main)
    lines = {
        word.value.lineno
        for word in nodes
        if isinstance(word, ast.keyword)
        and (word.arg or "").endswith("reduction")
        and isinstance(word.value, ast.Constant)
        and word.value.value == "sum"
    }
    line = lines.pop() if len(lines) == 1 else None
    return line_span(main, line, function_around(nodes, line)) if line is not None else None


def _made_at(kind: str, at: SourceSpan | None) -> SourceSpan | None:
    """The only line of the user's files that makes such a loss, and tells how it is reduced."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    files = {absolute(file) for file in (main, at.file if at else None) if file}
    own = sorted(file for file in files if kind and frame_kind(file) == USER)
    found = [line for file in own for line in lines_calling(file, (kind,), "reduction")]
    return found[0] if len(found) == 1 else None
