"""Temporary changes of one step, each a context manager: autocast off or in another dtype, a module or a call in float32, another
constant at one call, gradients unscaled before they are clipped.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.utils.clip_grad as clip_grad
from torch.overrides import TorchFunctionMode

from nanodoc.evidence import SourceSpan
from nanodoc.trace.spans import Place, calling_places, resolve

_HALF = (torch.float16, torch.bfloat16)


class Applied:
    """Whether a patch met anything to change."""

    def __init__(self) -> None:
        self.yes = False


@contextlib.contextmanager
def autocast_in(dtype: torch.dtype | None, applied: Applied) -> Iterator[None]:
    """Every enabled autocast context in `dtype`, or switched off with None."""
    enter = torch.autocast.__enter__

    def entering(context: Any) -> Any:
        if context._enabled:
            applied.yes = True
            if dtype is None:
                context._enabled = False
            else:
                context.fast_dtype = dtype
        return enter(context)

    torch.autocast.__enter__ = entering  # type: ignore[method-assign]  # put back below
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]  # the original


@contextlib.contextmanager
def float32_module(module: torch.nn.Module, device: str, applied: Applied) -> Iterator[None]:
    """Autocast disabled around one module, and its half-precision arguments cast to float32; what it returns stays float32."""
    contexts: list[Any] = []

    def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        applied.yes = True
        contexts.append(torch.autocast(device, enabled=False))
        contexts[-1].__enter__()
        return _raised(args), _raised(kwargs)

    def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
        contexts.pop().__exit__(None, None, None)

    handles = [module.register_forward_pre_hook(enter, with_kwargs=True), module.register_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _AtCall(TorchFunctionMode):
    """Calls `change(func, args, kwargs)` instead of the functions at one place of the user's code."""

    def __init__(self, where: SourceSpan, change: Callable[[Any, Any, Any], Any], *, exact: bool = False) -> None:
        super().__init__()
        self._exact = exact
        self._where = where
        self._change = change
        self._here: dict[Place, bool] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(self._matches(place) for place in calling_places(2) if place is not None):
            return self._change(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _matches(self, place: Place) -> bool:
        known = self._here.get(place)
        if known is None:
            span, where = resolve(*place), self._where
            same = span is not None and (span.file, span.line, span.end_line) == (where.file, where.line, where.end_line)
            # an argument of the call is evaluated inside its columns, and belongs to it
            if self._exact and span is not None:
                same = same and (where.column, where.end_column) == (span.column, span.end_column)
            known = self._here[place] = bool(
                same and span is not None and where.column <= span.column and span.end_column <= where.end_column
            )
        return known


def float32_call(where: SourceSpan, device: str, applied: Applied) -> contextlib.AbstractContextManager[Any]:
    """The calls at one place get float32 copies of their half-precision arguments, without autocast."""

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if not _computes(func):
            return func(*args, **kwargs)
        applied.yes = True
        with torch.autocast(device, enabled=False):
            return func(*_raised(args), **_raised(kwargs))

    return _AtCall(where, change)


def constant_at(where: SourceSpan, value: float, replacement: float, applied: Applied) -> contextlib.AbstractContextManager[Any]:
    """The number `value` among the arguments of the calls at one place becomes `replacement`."""

    def swapped(item: Any) -> Any:
        if isinstance(item, (int, float)) and not isinstance(item, bool) and item == value:
            applied.yes = True
            return replacement
        return item

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        return func(*[swapped(a) for a in args], **{key: swapped(item) for key, item in kwargs.items()})

    return _AtCall(where, change)


@contextlib.contextmanager
def unscaled_before_clipping(scaler: Any, optimizers: list[torch.optim.Optimizer], applied: Applied) -> Iterator[None]:
    """`scaler.unscale_` is called for every optimizer with gradients before torch's clipping looks at them."""
    inner: Any = clip_grad  # the functions that both of torch's clips call first are not exported
    norm, group = inner._get_total_norm, inner._group_tensors_by_device_and_dtype

    def unscale() -> None:
        for optimizer in optimizers:
            ready = scaler._per_optimizer_states[id(optimizer)]["stage"].name == "READY"
            if ready and any(p.grad is not None for g in optimizer.param_groups for p in g["params"]):
                applied.yes = True
                scaler.unscale_(optimizer)

    def before(original: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            unscale()
            return original(*args, **kwargs)

        return wrapped

    inner._get_total_norm, inner._group_tensors_by_device_and_dtype = before(norm), before(group)
    try:
        yield
    finally:
        inner._get_total_norm, inner._group_tensors_by_device_and_dtype = norm, group


def _raised(value: Any) -> Any:
    """`value` with every half-precision tensor in float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _HALF else value
    if isinstance(value, Mapping) and type(value) is dict:
        return {key: _raised(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_raised(item) for item in value)
    return value


def _computes(func: Any) -> bool:
    """An operator, and not an attribute that is read or a cast."""
    return getattr(func, "__name__", "") not in ("__get__", "__set__", "to", "half", "bfloat16", "type", "dim", "size", "type_as")


def argument_at(where: SourceSpan, op: str, position: int, template: str, applied: Applied) -> contextlib.AbstractContextManager[Any]:
    """One argument of the call of `op` at exactly this place becomes what `template` (such as "{x}.clamp_min(1e-12)") makes of it.
    Raises ValueError for a template that is no such expression."""
    guard = guard_of(template)

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        name = _operator(func)
        if name not in _SPELLINGS.get(op, (op,)):
            return func(*args, **kwargs)
        at = 0 if name in ("rtruediv", "rdiv") else position  # 1 / x arrives as x.__rdiv__(1)
        if at < len(args) and isinstance(args[at], torch.Tensor):
            applied.yes = True
            args = (*args[:at], guard(args[at]), *args[at + 1 :])
        return func(*args, **kwargs)

    return _AtCall(where, change, exact=True)


def log_softmax_at(where: SourceSpan, applied: Applied) -> contextlib.AbstractContextManager[Any]:
    """A log at this place, of what a softmax gave, becomes one log_softmax."""
    made: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if _operator(func) == "log" and args and id(args[0]) in made:
            applied.yes = True
            _, logits, dim = made[id(args[0])]
            return torch.log_softmax(logits, dim)
        return func(*args, **kwargs)

    class Remembering(_AtCall):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = super().__torch_function__(func, types, args, kwargs)
            if _operator(func) == "softmax" and isinstance(out, torch.Tensor):
                dim = (kwargs or {}).get("dim", args[1] if len(args) > 1 else -1)
                made[id(out)] = (out, args[0], -1 if dim is None else dim)
            return out

    return Remembering(where, change)


_SPELLINGS = {
    "div": ("div", "truediv", "true_divide", "divide"), "reciprocal": ("reciprocal", "rtruediv", "rdiv"), "pow": ("pow", "rpow"),
    "linalg_vector_norm": ("norm", "vector_norm", "linalg_vector_norm", "linalg_norm"), "norm": ("norm", "vector_norm", "linalg_vector_norm"),
}  # fmt: skip


def _operator(func: Any) -> str:
    """`Tensor.__pow__`, `torch.pow` and `Tensor.pow_` as `pow`."""
    return str(getattr(func, "__name__", "")).strip("_")


def guard_of(template: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """What a fix's template says, as a function of a tensor: a constant added, or a clamp. Only these are understood; nothing is
    evaluated. Raises ValueError."""
    tree = ast.parse(template.replace("{x}", "x"), mode="eval").body
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add) and isinstance(tree.left, ast.Name):
        offset = _number(tree.right)
        return lambda x: x + offset
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute) and isinstance(tree.func.value, ast.Name) and not tree.keywords:
        bounds = [_number(argument) for argument in tree.args]
        if tree.func.attr == "clamp_min" and len(bounds) == 1:
            return lambda x: x.clamp_min(bounds[0])
        if tree.func.attr == "clamp" and len(bounds) == 2:
            return lambda x: x.clamp(bounds[0], bounds[1])
    raise ValueError(f"no guard: {template!r}")


def _number(tree: ast.expr) -> float:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, (int, float)):
        return float(tree.value)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -_number(tree.operand)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Sub)):
        left, right = _number(tree.left), _number(tree.right)
        return left + right if isinstance(tree.op, ast.Add) else left - right
    raise ValueError(f"no number: {ast.unparse(tree)}")
