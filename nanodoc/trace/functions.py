"""What the dispatcher cannot see: tensors turned into Python values and back, and who switched
gradients off.

A function mode above autograd, active together with a tracer that keeps a `FlowLog`. It calls every
function as it is.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.failure_kinds import KEPT_FROM_KERNEL
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.taps import INFERENCE_ENTERED, INFERENCE_LEFT
from nanodoc.instrument.torch_private import set_grad_enabled
from nanodoc.trace.files import line_span
from nanodoc.trace.flow import MOST_VALUES, FlowLog, Region
from nanodoc.trace.ops import tensors_in
from nanodoc.trace.parsed import definition_of
from nanodoc.trace.ranges import RANGED, out_of_range
from nanodoc.trace.spans import Place, call_of_helper, calling_places
from nanodoc.vocabulary.calls import GRAD_MODES

look_through(__file__)

_Tensor = torch.Tensor
_EXPORTS = {
    getattr(_Tensor, name): name
    for name in (
        "item",
        "tolist",
        "numpy",
        "__array__",
        "__float__",
        "__int__",
        "__index__",
        "__complex__",
    )
}
_IMPORTS = {
    torch.tensor: "torch.tensor",
    torch.as_tensor: "torch.as_tensor",
    torch.asarray: "torch.asarray",
}
_IMPORTS[_Tensor.new_tensor] = "Tensor.new_tensor"
_LIFT = torch.ops.aten.lift_fresh.default
READS_ANYTHING = ("mps",)
"""Types of device that are not known to assert on an index out of range: a kernel may raise, or
read whatever is there and go on."""
# a run on these is not ended for one: the process does not lose the device
_RAISE_OR_GO_ON = ("cpu", "meta", *READS_ANYTHING)
_SWITCH = set_grad_enabled
_CHECKPOINT = str(Path("torch", "utils", "checkpoint.py"))


class FunctionWatch(TorchFunctionMode):
    """Tells the tracer of exports, imports and regions. `failing` holds the tensors of the call
    that raised last.

    With `check_ranges`, indices and labels are looked at before they are used. With `shaken`, an
    experiment: what the exports at that place hand to Python is changed a little, so that whatever
    depends on it changes too.
    """

    def __init__(
        self, tracer: Any, flow: FlowLog, shaken: Place | None = None, *, check_ranges: bool = False
    ) -> None:
        super().__init__()
        self._check_ranges = check_ranges
        self._shaken = shaken
        self._tracer = tracer
        self._flow = flow
        self.ranges: list[RangeFacts] = []
        """Indices and labels out of range."""
        self.failing: tuple[str, list[torch.Tensor]] | None = None
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> FunctionWatch:
        flow, outer = self._flow, []

        def entering(enter: Callable[..., Any]) -> Callable[..., Any]:
            def __enter__(context: Any) -> Any:
                outer.append(flow.region)
                if context.mode and flow.region < 0:
                    flow.regions.append(Region("inference_mode", opener()))
                    flow.region = len(flow.regions) - 1
                return enter(context)

            return __enter__

        def leaving(leave: Callable[..., Any]) -> Callable[..., Any]:
            def __exit__(context: Any, *exc: Any) -> Any:
                flow.region = outer.pop() if outer else -1
                return leave(context, *exc)

            return __exit__

        self._undo = [INFERENCE_ENTERED.listen(entering), INFERENCE_LEFT.listen(leaving)]
        if not torch.is_grad_enabled():  # switched off before the step
            flow.region = 0
        return super().__enter__()  # type: ignore[no-any-return]  # unannotated in torch

    def __exit__(self, *exc: Any) -> None:
        for undo in self._undo:
            undo()
        super().__exit__(*exc)

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            if func is _SWITCH:
                return self._switch(func, args, kwargs)
            if func is _LIFT:
                return call(func, *args, **kwargs)
            if func in _EXPORTS:
                return self._export(func, args, kwargs)
            if func in _IMPORTS:
                return self._import(func, args, kwargs)
            name = getattr(func, "__name__", "")
            if self._check_ranges and name in RANGED:
                self._check_range(name, args, kwargs)
            if name in ("requires_grad_", "__set__"):
                return self._freeze(func, name, args, kwargs)
            return call(func, *args, **kwargs)
        except torch.OutOfMemoryError:
            # its arguments are what fills the device, and no graph's fault
            raise
        except BaseException:
            if self.failing is None or not _same(self.failing[1], args):
                self.failing = (getattr(func, "__name__", str(func)), tensors_in(args))
            raise

    def _check_range(self, name: str, args: Any, kwargs: Any) -> None:
        """Looks at indices before the kernel does. A device that would be lost to them is kept from
        it."""
        with self._tracer.paused():
            found = out_of_range(name, args, kwargs, self._tracer.module)
        if found is None:
            return
        self.ranges.append(found)
        if args and isinstance(args[0], _Tensor) and args[0].device.type not in _RAISE_OR_GO_ON:
            raise IndexError(
                f"{name}: index {found.value} is out of range for {found.size} entries "
                f"{KEPT_FROM_KERNEL}"
            )

    def _switch(self, func: Any, args: Any, kwargs: Any) -> Any:
        flow, was_on = self._flow, torch.is_grad_enabled()
        out = call(func, *args, **kwargs)
        if torch.is_grad_enabled():
            flow.region = -1
        elif flow.region < 0 and not _leaving():
            flow.regions.append(_region())
            flow.region, flow.region_is_nested = len(flow.regions) - 1, not was_on
        return out

    def _export(self, func: Any, args: Any, kwargs: Any) -> Any:
        before = self._tracer.count
        out = call(func, *args, **kwargs)
        shaken = self._shaken is not None and self._shaken == calling_places(1)[0]
        name, tensor = _EXPORTS[func], args[0]
        if name in ("item", "__float__", "__int__", "__index__", "__complex__"):
            last = self._tracer.count - 1
            # legacy constructors read their elements without the dispatcher seeing it
            index = (
                last if last >= before else self._tracer.add_host(f"Tensor.{name}", [tensor], [])
            )
            self._flow.exported(index, [] if shaken else [out])
        elif name == "tolist":
            index = self._tracer.add_host("Tensor.tolist", [tensor], [])
            self._flow.exported(index, [] if shaken else _flat(out))
        else:
            index = self._tracer.add_host(f"Tensor.{name}", [tensor], [])
            with self._tracer.paused():
                values = [] if shaken else tensor.detach().flatten()[:MOST_VALUES].tolist()
            self._flow.exported(index, values, None if shaken else _address(out))
        return _shake(out) if shaken else out

    def _import(self, func: Any, args: Any, kwargs: Any) -> Any:
        data = (
            args[1]
            if func is _Tensor.new_tensor
            else args[0]
            if args
            else kwargs.get("data", kwargs.get("obj"))
        )
        nested = [] if isinstance(data, _Tensor) else nested_tensors(data)
        out = call(func, *args, **kwargs)
        if nested and isinstance(out, _Tensor):
            self._tracer.add_host(_IMPORTS[func], nested, [out])
        return out

    def _freeze(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        before = tensor.requires_grad
        out = call(func, *args, **kwargs)
        if before and not tensor.requires_grad:
            producer = self._flow.producer(tensor)
            if producer is not None and producer < 0:
                own, caller = calling_places(3)
                self._flow.frozen_at[-1 - producer] = caller or own
                by = call_of_helper(caller or own)
                if by is not None:
                    self._flow.frozen_by[-1 - producer] = by
        return out


def _same(tensors: list[torch.Tensor], args: Any) -> bool:
    """The same failing call, seen again on its way up."""
    return bool(tensors) and any(any(a is b for b in tensors) for a in tensors_in(args))


def nested_tensors(data: Any, depth: int = 4) -> list[torch.Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(data, _Tensor):
        return [data]
    if depth and isinstance(data, (list, tuple)):
        return [tensor for item in data[:MOST_VALUES] for tensor in nested_tensors(item, depth - 1)]
    return []


def _shake(value: Any) -> Any:
    if isinstance(value, float):
        return value * (1 + 1e-3) + 1e-6
    if isinstance(value, list):
        return (
            [_shake(item) if i % 2 else item for i, item in enumerate(value)]
            if len(value) > 1
            else [_shake(item) for item in value]
        )
    if hasattr(value, "__array_interface__") and value.dtype.kind == "f":
        changed = value * (1 + 1e-3) + 1e-6
        if changed.size > 1:  # not all alike: what follows may normalise
            changed.reshape(-1)[::2] = value.reshape(-1)[::2]
        return changed
    return value


def _flat(data: Any) -> list[Any]:
    if isinstance(data, list):
        return [value for item in data[:MOST_VALUES] for value in _flat(item)]
    return [data]


def _address(array: Any) -> int | None:
    interface = getattr(array, "__array_interface__", None)
    return interface["data"][0] if isinstance(interface, dict) else None


# -- who switched gradients off --------------------------------------------------------------------


def _leaving() -> bool:
    """Gradients stay off because a region inside another one ends."""
    frame = sys._getframe(2)
    for _ in range(6):
        if frame is None or not frame.f_code.co_filename.endswith(
            ("grad_mode.py", "functions.py", "graph_watch.py", "_contextlib.py", "originals.py")
        ):
            return False
        if frame.f_code.co_name == "__exit__":
            return True
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return False


def _region() -> Region:
    kind = ""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_CHECKPOINT):
            kind = "checkpoint"
            break
        if code.co_filename.endswith("grad_mode.py"):  # no_grad itself calls set_grad_enabled
            owner = frame.f_locals.get("self")
            kind = type(owner).__name__ if owner is not None else kind
        frame = frame.f_back  # type: ignore[assignment]  # the loop's end is the None of the outermost frame
    return Region(kind, opener())


def opener() -> Place | SourceSpan | None:
    """The `with` statement, the call, or the decorator that opened the region."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "decorate_context" and "func" in frame.f_locals:
            return _decorator(frame.f_locals["func"]) or _user_place()
        own, _ = calling_places(1)
        if own is not None and own[0] is code:
            break
        frame = frame.f_back  # type: ignore[assignment]  # as above
    return _user_place()


def _user_place() -> Place | None:
    own, caller = calling_places(2)
    return caller or own


def _decorator(function: Any) -> SourceSpan | None:
    """The decorator's line above a function's definition."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    for line in range(code.co_firstlineno, code.co_firstlineno + 12):
        text = linecache.getline(code.co_filename, line).strip()
        if text.startswith("@") and any(word in text for word in GRAD_MODES):
            return line_span(code.co_filename, line, _shown_name(code))
        if text.startswith(("def ", "async def ")):
            break
    return None


def return_statement(function: Callable[..., Any]) -> SourceSpan | None:
    """The one `return` of a function of the user's, None where there are several or none."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    node = definition_of(code)
    returns = [inner for inner in ast.walk(node) if isinstance(inner, ast.Return)] if node else []
    if len(returns) != 1:
        return None
    return line_span(code.co_filename, returns[0].lineno, _shown_name(code))


def _shown_name(code: CodeType) -> str:
    return code.co_qualname.replace(".<locals>", "")
