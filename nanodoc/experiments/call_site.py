"""Temporary changes of the torch functions that one place of the user's code calls: an argument, a
constant, a mask, a reduction.

Each is a context manager with a function mode above autograd, so that value and gradient change
alike. Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.experiments.templates import function_of
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.trace.spans import Place, calling_places, resolve
from nanodoc.vocabulary.calls import CLASSIFICATION, MEANS, SOFTMAXES, VARIANCES
from nanodoc.vocabulary.names import canonical
from nanodoc.vocabulary.ops import FUNCTIONS_OF

look_through(__file__)

_HALF = (torch.float16, torch.bfloat16)


class Applied:
    """Whether a patch met anything to change."""

    def __init__(self) -> None:
        self.yes = False


class AtCall(TorchFunctionMode):
    """Calls `change(func, args, kwargs)` instead of the functions at one place of the user's
    code."""

    def __init__(
        self, where: SourceSpan, change: Callable[[Any, Any, Any], Any], *, exact: bool = False
    ) -> None:
        super().__init__()
        self._exact = exact
        self._where = where
        self._change = change
        self._here: dict[tuple[str, Place], bool] = {}

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(self._matches(place) for place in calling_places(2) if place is not None):
            return self._change(func, args, kwargs or {})
        return call(func, *args, **(kwargs or {}))

    def _matches(self, place: Place) -> bool:
        key = (place[0].co_filename, place)  # equal code of two files compares equal
        known = self._here.get(key)
        if known is None:
            span, where = resolve(*place), self._where
            same = span is not None and (span.file, span.line, span.end_line) == (
                where.file,
                where.line,
                where.end_line,
            )
            # an argument of the call is evaluated inside its columns, and belongs to it
            if self._exact and span is not None:
                same = same and (where.column, where.end_column) == (span.column, span.end_column)
            known = self._here[key] = bool(
                same
                and span is not None
                and where.column <= span.column
                and span.end_column <= where.end_column
            )
        return known


Patch = contextlib.AbstractContextManager[Any]


def float32_call(where: SourceSpan, device: str, applied: Applied) -> Patch:
    """The calls at one place get float32 copies of their half-precision arguments, without
    autocast."""

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if not _computes(func):
            return call(func, *args, **kwargs)
        applied.yes = True
        with torch.autocast(device, enabled=False):
            return call(func, *raised(args), **raised(kwargs))

    return AtCall(where, change)


def constant_at(where: SourceSpan, value: float, replacement: float, applied: Applied) -> Patch:
    """The number `value` among the arguments of the calls at one place becomes `replacement`."""

    def swapped(item: Any) -> Any:
        if isinstance(item, (int, float)) and not isinstance(item, bool) and item == value:
            applied.yes = True
            return replacement
        return item

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        return func(
            *[swapped(a) for a in args], **{key: swapped(item) for key, item in kwargs.items()}
        )

    return AtCall(where, change)


def argument_at(
    where: SourceSpan, op: str, position: int, template: str, applied: Applied
) -> Patch:
    """One argument of the call of `op` at exactly this place becomes what `template` (such as
    "{x}.clamp_min(1e-12)") makes of it. Raises ValueError for a template that is no such
    expression."""
    guard, op = function_of(template), canonical(op)

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        name = operator_of(func)
        if name not in FUNCTIONS_OF.get(op, (op,)) and not name.endswith("_" + op):
            return call(func, *args, **kwargs)
        at = 0 if name == "rdiv" else position  # 1 / x arrives as x.__rdiv__(1)
        if at < len(args) and isinstance(args[at], torch.Tensor):
            applied.yes = True
            args = (*args[:at], guard(args[at]), *args[at + 1 :])
        else:
            word = (
                list(inspect.signature(func).parameters)[at]
                if kwargs and not hasattr(func, "__objclass__") and _has_signature(func)
                else None
            )
            if word in kwargs and isinstance(kwargs[word], torch.Tensor):
                applied.yes = True
                kwargs = {**kwargs, word: guard(kwargs[word])}
        return call(func, *args, **kwargs)

    return AtCall(where, change, exact=True)


def keyword_at(where: SourceSpan, op: str, name: str, value: Any, applied: Applied) -> Patch:
    """The call of `op` at exactly this place gets `name=value`."""

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if canonical(op) not in operator_of(func):
            return call(func, *args, **kwargs)
        applied.yes = True
        if _has_signature(func):  # given by position, the keyword must take its place
            words = list(inspect.signature(func).parameters)
            if name in words and words.index(name) < len(args):
                at = words.index(name)
                return call(func, *args[:at], value, *args[at + 1 :], **kwargs)
        elif len(args) > 1 and isinstance(args[-1], bool):  # std(x, dim, unbiased)
            args = args[:-1]
        return call(func, *args, **{**kwargs, name: value})

    return AtCall(where, change, exact=True)


def identity_at(where: SourceSpan, op: str, applied: Applied) -> Patch:
    """The calls of `op` at this place give back their first argument."""

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        value = args[0] if args else kwargs.get("input")
        if operator_of(func) != canonical(op) or not isinstance(value, torch.Tensor):
            return call(func, *args, **kwargs)
        applied.yes = True
        return value

    return AtCall(where, change)


def log_softmax_at(where: SourceSpan, applied: Applied) -> Patch:
    """A log at this place, of what a softmax gave, becomes one log_softmax."""
    return _log_of("softmax", where, applied)


def logsumexp_at(where: SourceSpan, applied: Applied) -> Patch:
    """A log, of a sum of what an exp at this place gave, becomes one logsumexp."""
    return _LogSumExp(where, applied)


def _log_of(name: str, where: SourceSpan, applied: Applied) -> Patch:
    made: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if operator_of(func) == "log" and args and id(args[0]) in made:
            applied.yes = True
            _, logits, dim = made[id(args[0])]
            return torch.log_softmax(logits, dim)
        return call(func, *args, **kwargs)

    class Remembering(AtCall):
        @of_function_mode
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = super().__torch_function__(func, types, args, kwargs)
            if operator_of(func) == name and isinstance(out, torch.Tensor):
                dim = (kwargs or {}).get("dim", args[1] if len(args) > 1 else -1)
                made[id(out)] = (out, args[0], -1 if dim is None else dim)
            return out

    return Remembering(where, change)


class _LogSumExp(AtCall):
    """Remembers what the exp at its place was given and along which dimension it was summed, until
    a log asks for it."""

    def __init__(self, where: SourceSpan, applied: Applied) -> None:
        super().__init__(where, lambda func, args, kwargs: call(func, *args, **kwargs), exact=True)
        self._applied = applied
        self._exps: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._sums: dict[int, tuple[torch.Tensor, torch.Tensor, Any, bool]] = {}

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = operator_of(func)
        if name == "log" and args and id(args[0]) in self._sums:
            self._applied.yes = True
            _, x, dim, keep = self._sums[id(args[0])]
            return torch.logsumexp(x, dim, keepdim=keep)
        here = name == "exp" and any(
            self._matches(place) for place in calling_places(2) if place is not None
        )
        out = call(func, *args, **kwargs)
        if here and isinstance(out, torch.Tensor):
            self._exps[id(out)] = (out, args[0])
        elif name == "sum" and args and id(args[0]) in self._exps and isinstance(out, torch.Tensor):
            x = self._exps[id(args[0])][1]
            dim = kwargs.get("dim", args[1] if len(args) > 1 else tuple(range(x.dim())))
            self._sums[id(out)] = (
                out,
                x,
                dim,
                bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False)),
            )
        return out


def kept_mean_at(where: SourceSpan, applied: Applied) -> Patch:
    """A cross entropy at this place that averages over no target gives the sum, which is 0."""

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if operator_of(func) not in CLASSIFICATION:
            return call(func, *args, **kwargs)
        out = call(func, *args, **kwargs)
        bad = isinstance(out, torch.Tensor) and out.dim() == 0 and bool(torch.isnan(out))
        if not bad:
            return out
        total = _called_with(func, args, kwargs, reduction="sum")
        if bool(total == 0):
            applied.yes = True
            return total
        return out

    return AtCall(where, change, exact=True)


def empty_mean_at(where: SourceSpan, applied: Applied) -> Patch:
    """A mean, or a loss that averages, over no element at this place gives the sum, which is 0."""

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if not (args and isinstance(args[0], torch.Tensor) and args[0].numel() == 0):
            return call(func, *args, **kwargs)
        if operator_of(func) in MEANS:
            applied.yes = True
            return args[0].sum(*args[1:], **kwargs)
        if _has_signature(func) and "reduction" in inspect.signature(func).parameters:
            applied.yes = True
            return _called_with(func, args, kwargs, reduction="sum")
        return call(func, *args, **kwargs)

    return AtCall(where, change, exact=True)


def unmasked_at(where: SourceSpan, applied: Applied) -> Patch:
    """Rows of a softmax, or of an attention mask, at this place that have every entry masked are
    unmasked."""

    def rows(mask: Any, *, true_masks: bool) -> Any:
        if not isinstance(mask, torch.Tensor):
            return mask
        if mask.dtype == torch.bool:
            full = mask.all(-1, keepdim=True) if true_masks else ~mask.any(-1, keepdim=True)
        else:
            full = (mask == -torch.inf).all(-1, keepdim=True)
        if not bool(full.any()):
            return mask
        applied.yes = True
        return mask.masked_fill(full, (not true_masks) if mask.dtype == torch.bool else 0.0)

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        name = operator_of(func)
        if name in (*SOFTMAXES, "logsumexp") and args:
            return func(rows(args[0], true_masks=False), *args[1:], **kwargs)
        if name == "scaled_dot_product_attention":
            args = tuple(rows(a, true_masks=False) if i == 3 else a for i, a in enumerate(args))
            return func(
                *args,
                **{
                    k: rows(v, true_masks=False) if k == "attn_mask" else v
                    for k, v in kwargs.items()
                },
            )
        if name == "multi_head_attention_forward":
            return func(
                *args,
                **{
                    k: rows(v, true_masks=True) if k in ("attn_mask", "key_padding_mask") else v
                    for k, v in kwargs.items()
                },
            )
        return call(func, *args, **kwargs)

    return AtCall(where, change, exact=True)


def lone_statistics_at(where: SourceSpan, applied: Applied) -> Patch:
    """A std or var at this place that would divide by zero is the biased one."""

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if operator_of(func) not in VARIANCES:
            return call(func, *args, **kwargs)
        biased = {
            key: value for key, value in kwargs.items() if key not in ("unbiased", "correction")
        }
        shape = args[0].shape
        dim = kwargs.get(
            "dim", args[1] if len(args) > 1 and not isinstance(args[1], bool) else None
        )
        dims = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
        count = 1
        for axis in dims:
            count *= shape[axis]
        if count != 1:
            return call(func, *args, **kwargs)
        applied.yes = True
        return call(func, *args, **biased, unbiased=False)

    return AtCall(where, change, exact=True)


def operator_of(func: Any) -> str:
    """`Tensor.__pow__`, `torch.pow` and `Tensor.pow_` as `pow`."""
    return canonical(str(getattr(func, "__name__", "")))


def raised(value: Any) -> Any:
    """`value` with every half-precision tensor in float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _HALF else value
    if isinstance(value, Mapping) and type(value) is dict:
        return {key: raised(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(raised(item) for item in value)
    return value


def _called_with(func: Any, args: Any, kwargs: Any, **changed: Any) -> Any:
    """`func` with some keywords changed, wherever they were given."""
    words = list(inspect.signature(func).parameters)
    given = dict(zip(words, args, strict=False)) | kwargs
    for old in ("size_average", "reduce"):
        given.pop(old, None)
    return call(func, **{**given, **changed})


def _has_signature(func: Any) -> bool:
    return inspect.isfunction(func)


def _computes(func: Any) -> bool:
    """An operator, and not an attribute that is read or a cast."""
    return getattr(func, "__name__", "") not in (
        "__get__",
        "__set__",
        "to",
        "half",
        "bfloat16",
        "type",
        "dim",
        "size",
        "type_as",
    )
