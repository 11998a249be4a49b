"""Call-site patches for cut graphs: the user's line behaves as the fix would, in one replay, and
nowhere else.

A patch sits above autograd, so the gradient is that of the patched program. Frames of this file are
looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import set_grad_enabled
from nanodoc.trace.functions import nested_tensors, opener
from nanodoc.trace.spans import Place, calling_places, resolve

look_through(__file__)

_Tensor = torch.Tensor
_DETACHES = (_Tensor.detach, torch.detach, _Tensor.data.__get__)  # type: ignore[attr-defined]  # a getset descriptor
_SWITCH = set_grad_enabled


class CallPatch(TorchFunctionMode):
    """Changes what the calls at one place do. `kind`: "attached" (no detach), "stack", "cat",
    "grad-on" (the region isn't opened), "unfrozen" or "out-of-place". `applied` says whether any
    call was met."""

    def __init__(self, kind: str, place: Place | SourceSpan | None) -> None:
        super().__init__()
        self._kind = kind
        self._place = place
        self.applied = False

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        patch = self._patch(func, args, kwargs)
        if patch is not None and self._here(func):
            self.applied = True
            return patch()
        return call(func, *args, **kwargs)

    def _here(self, func: Any) -> bool:
        if self._kind == "grad-on":
            # entered twice: when it is made, and by the `with`
            return bool(_line(opener()) == _line(self._place))
        own, caller = calling_places(3)
        return self._place in (own, caller) if self._place is not None else False

    def _patch(self, func: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        kind = self._kind
        if kind == "attached" and func in _DETACHES:
            return lambda: args[0]
        if kind in ("stack", "cat") and func in (
            torch.tensor,
            torch.as_tensor,
            torch.asarray,
            _Tensor.new_tensor,
        ):
            data = (
                args[1] if func is _Tensor.new_tensor else args[0] if args else kwargs.get("data")
            )
            tensors = nested_tensors(data)
            if not tensors:
                return None
            dtype = kwargs.get("dtype")
            joined = torch.stack if kind == "stack" else torch.cat
            return lambda: joined(tensors) if dtype is None else joined(tensors).to(dtype)
        if kind == "grad-on" and func is _SWITCH and not args[0]:
            return lambda: None
        if kind == "unfrozen" and getattr(func, "__name__", "") in ("requires_grad_", "__set__"):
            return lambda: args[0]
        if kind == "out-of-place":
            return self._out_of_place(func, args, kwargs)
        return None

    def _out_of_place(self, func: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """`x += y` arrives as `Tensor.add_`; an in-place activation by its flag or its
        underscore."""
        name = getattr(func, "__name__", "")
        if kwargs.get("inplace"):
            return lambda: call(func, *args, **{**kwargs, "inplace": False})
        plain = name.rstrip("_")
        if not name.endswith("_") or name.startswith("_"):
            return None
        method = getattr(_Tensor, plain, None) or getattr(torch.nn.functional, plain, None)
        return (lambda: method(*args, **kwargs)) if method is not None else None


def rebinds(span: SourceSpan | None) -> bool:
    """The statement binds what its call returns (`x /= n`, `y = F.relu(x, inplace=True)`), so that
    a call which returns a new tensor instead of writing to its argument leaves the program's
    meaning as it was."""
    try:
        body = ast.parse(span.code.strip()).body if span is not None else []
    except SyntaxError:
        return False
    if len(body) != 1:
        return False
    tree = body[0]
    return (
        isinstance(tree, ast.AugAssign) and isinstance(tree.target, (ast.Name, ast.Attribute))
    ) or isinstance(tree, (ast.Assign, ast.Return))


def _line(place: Place | SourceSpan | None) -> Any:
    span = place if isinstance(place, SourceSpan) or place is None else resolve(*place)
    return (span.file, span.line) if span is not None else None
