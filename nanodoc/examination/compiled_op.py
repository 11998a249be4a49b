"""The first op of a compiled part that is not as its source has it. The part is compiled once more,
with every value between its ops among its outputs, and each is compared with what the same graph
gives op by op; where these are alike, the graph itself is compared with the calls of the source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.examination.compiled_parts import CompiledParts, Part, farthest
from nanodoc.examination.compiled_values import apart, coarsest
from nanodoc.facts.compiled import ApartFacts, CompiledOpFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import innermost_backend
from nanodoc.trace.calls import plain_name
from nanodoc.trace.files import USER, frame_kind, line_span
from nanodoc.trace.ops import outputs_of
from nanodoc.trace.spans import calling_places, resolved

look_through(__file__)

_MOST_OPS = 600
"""Of one graph: every value between them is kept, and compiling takes 10 ms and more for each."""
_APART, _APART_IN_HALF = 1e-3, 0.05
"""Relative differences of one value that are no rounding: as `compiled_parts._FLOOR`; bfloat16
rounds to 0.004."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')


@dataclass(frozen=True, slots=True)
class _Made:
    """A value of a graph or of a call."""

    name: str
    location: SourceSpan | None
    value: torch.Tensor


def is_stale(parts: CompiledParts, part: Part) -> bool:
    """Compiled anew, the part computes what its source says. Raises what compilers raise."""
    backend = innermost_backend(part.context.callback)
    # a function of its own: what is compiled already would be taken for one with the same backend
    anew = lambda graph, inputs: backend(graph, inputs)  # noqa: E731
    with torch.compiler.set_stance("default", force_backend=anew):
        values = parts.call(part, part.compiled())
    return farthest(values, parts.eagerly(part), coarsest(part.inputs, _device(part))) is None


def first_apart(parts: CompiledParts, part: Part) -> CompiledOpFacts | None:
    """None where no single op is: the compiled code fuses ops, or the difference is in the backward
    pass. Raises what compilers raise."""
    backend = _OpByOp(
        innermost_backend(part.context.callback), coarsest(part.inputs, _device(part))
    )
    with torch.no_grad(), torch.compiler.set_stance("default", force_backend=backend):
        parts.call(part, part.compiled())
    if backend.first is not None or not backend.values:
        return backend.first
    calls = _Calls()
    with torch.no_grad(), calls:
        parts.eagerly(part)
    return _untraced(backend.values, calls)


def _device(part: Part) -> torch.device:
    return next((tensor.device for tensor in part.inputs), torch.device("cpu"))


class _OpByOp:
    """A backend that runs a graph op by op, beside what another backend makes of it."""

    def __init__(self, backend: Any, eps: float) -> None:
        self._backend = backend
        self._most = _APART_IN_HALF if eps > 1e-4 else _APART
        self.first: CompiledOpFacts | None = None
        self.values: list[_Made] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        nodes = [node for node in graph.graph.nodes if _makes_numbers(node)]
        if not nodes or len(nodes) > _MOST_OPS:
            return graph.forward
        compiled = self._backend(_with_all_values(graph, nodes), inputs)

        def run(*given: Any) -> Any:
            theirs = compiled(*map(_copied, given))
            interpreter = _Interpreter(graph)
            out = interpreter.run(*given)
            self._compare(nodes, theirs, interpreter)
            return out

        return run

    def _compare(self, nodes: list[Any], theirs: Any, mine: _Interpreter) -> None:
        for node, other in zip(nodes, theirs, strict=True):
            value = mine.made.get(node)
            if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
                continue
            self.values.append(_Made(_name_of(node), _line_of(node), value.detach().clone()))
            far = apart(other, value, "output")
            if self.first is None and far is not None and far.apart > self._most:
                # one that the compiled code takes to be as it was made, and that was written to
                at = mine.writers.get(id(value), node)
                self.first = CompiledOpFacts(
                    name=_name_of(at),
                    location=_line_of(at),
                    traced=False,
                    values=ApartFacts(
                        compiled=far.compiled, eager=far.eager, apart=far.apart, allowed=self._most
                    ),
                )


class _Interpreter(torch.fx.Interpreter):
    """Keeps the value of each node: written to later, it is what was written. `writers` are the
    ops of libraries that wrote to one, by the value's identity."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.made: dict[Any, Any] = {}
        self.writers: dict[int, Any] = {}

    def run_node(self, node: Any) -> Any:
        asked = _of_library(node)
        given = [t for t in self.fetch_args_kwargs_from_env(node)[0] if _is_tensor(t)]
        before = [(t, t.detach().clone()) for t in given] if asked else []
        self.made[node] = value = super().run_node(node)
        for tensor, was in before:
            if not torch.equal(tensor, was):
                self.writers[id(tensor)] = node
        return value


class _Calls(TorchFunctionMode):
    """What the calls of the source make, and their lines."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[torch.Tensor] = []
        self.lines: set[tuple[str, int]] = set()

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = call(func, *args, **(kwargs or {}))
        own, caller = calling_places(2)
        span = resolved(caller or own)
        if span is not None:
            self.lines.update((span.file, n) for n in range(span.line, span.end_line + 1))
        self.values += [t.detach().clone() for t in outputs_of(out) if t.is_floating_point()]
        return out

    def make(self, value: torch.Tensor) -> bool:
        """One of them made this value, but for rounding."""
        return any(
            own.shape == value.shape
            and ((far := apart(value, own, "")) is None or far.apart <= _APART)
            for own in self.values
        )


def _untraced(values: list[_Made], calls: _Calls) -> CompiledOpFacts | None:
    """The first op of the graph on a line that the source does not come to, or whose value no call
    of the source makes."""
    other = [
        made
        for made in values
        if made.location is not None and (made.location.file, made.location.line) not in calls.lines
    ]
    first = next(iter(other), None) or next((m for m in values if not calls.make(m.value)), None)
    if first is None:
        return None
    return CompiledOpFacts(name=first.name, location=first.location, traced=True)


def _with_all_values(graph: torch.fx.GraphModule, nodes: list[Any]) -> torch.fx.GraphModule:
    """The graph, with the values of these nodes as its outputs."""
    twin = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    twin.graph_copy(graph.graph, copies)
    twin.output(tuple(copies[node] for node in nodes))
    return torch.fx.GraphModule(graph, twin)


def _makes_numbers(node: Any) -> bool:
    value = node.meta.get("example_value")
    return (
        node.op in ("call_function", "call_method", "call_module")
        and isinstance(value, torch.Tensor)
        and value.is_floating_point()
    )


def _of_library(node: Any) -> bool:
    """An op that is none of torch's own, or a method's name."""
    return getattr(node.target, "namespace", "aten") not in ("aten", "prims")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _name_of(node: Any) -> str:
    """As the calls of a step are named; of an op of a library's own `library::op`."""
    target = node.target
    if _of_library(node):
        return str(target).removesuffix(".default").replace(".", "::", 1)
    return plain_name(target) if callable(target) else str(target)


def _line_of(node: Any) -> SourceSpan | None:
    """The innermost line of the user's that the compiler traced the node from."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    for frame in reversed(frames):
        if frame_kind(frame["file"]) == USER:
            return line_span(frame["file"], int(frame["line"]), frame["function"].strip())
    return None
