"""The compiled parts of a step, each called twice on the same inputs: as torch.compile has compiled
it, and as its source says. The two may differ by rounding, and by nothing else."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

import torch

from nanodoc.diagnosis.source_names import of_source
from nanodoc.examination.compiled_values import (
    InFloat32,
    Values,
    apart,
    coarsest,
    copies_of,
    values_of,
)
from nanodoc.facts.compiled import ApartFacts, CompiledFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import their_side
from nanodoc.instrument.taps import at, listening
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.rng import RandomKeeper
from nanodoc.replay.sandbox import warnings_unsaid
from nanodoc.trace.eager import run_eagerly
from nanodoc.trace.files import USER, frame_kind, line_span

look_through(__file__)

_DRAWS = "it draws random numbers, which compiled code draws in another way"
_MOVES = "called twice on the same inputs, it gives different values"
_TOO_LARGE = "its weights and inputs are too large to be copied"
_RECOMPILES = "called beside the step, it would be compiled anew"
_TIMES = 16.0
"""How many times the measured effect of rounding its inputs is allowed: each op rounds as well."""
_PERTURBED = 3  # runs on rounded inputs, of which the farthest counts
_ULPS = 64.0
"""As `fingerprint._ULPS`."""
_FLOOR, _GRADIENT_FLOOR = 1e-3, 1e-2
"""Differences below these are none, relative: fused kernels use other approximations of functions
such as erf and tanh, and add in another order. An op that is computed otherwise makes more."""
_NEARER = 4.0
"""In half precision a compiled part may be so many times as far from the float32 result as its
source: it keeps float32 between ops that are fused."""
_MOST_BYTES = 1 << 30
"""Weights and inputs beyond are not copied, to round them."""


class _TooLarge(Exception):
    """What would have to be copied is."""


@dataclass(slots=True)
class Part:
    """One call of something compiled, which is about to begin."""

    function: Callable[..., Any]
    context: Any
    """torch's own, which makes the compiled callable of the function."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[torch.Tensor] = field(default_factory=list)

    def compiled(self) -> Callable[..., Any]:
        """What the training calls; compiled already."""
        made: Callable[..., Any] = self.context(self.function)
        return made

    @property
    def module(self) -> torch.nn.Module | None:
        """The module that was compiled; None of a function."""
        for function in _unwrapped(self.function):
            owner = getattr(function, "__self__", function)
            if isinstance(owner, torch.nn.Module):
                return owner
        return None

    @property
    def code(self) -> CodeType | None:
        """That of the module's forward or of the function."""
        module = self.module
        if module is not None:
            return getattr(type(module).forward, "__code__", None)
        codes = [getattr(f, "__code__", None) for f in _unwrapped(self.function)]
        return next((c for c in codes if c is not None and frame_kind(c.co_filename) == USER), None)


class CompiledParts:
    """Asks each compiled part that a step calls, the first time that the step calls it. The step
    itself goes on as if nothing had been called beside it."""

    def __init__(self, model: torch.nn.Module, build: BuildFacts, device: torch.device) -> None:
        self._names = {id(module): of_source(name) for name, module in model.named_modules()}
        self._named = dict(model.named_parameters())
        self._buffers = list(model.buffers())
        self._build = build
        self._device = device
        self._random = RandomKeeper(device)
        self._met: set[int] = set()
        self._asking = self._drew = False
        self.found: CompiledFacts | None = None
        self.part: Part | None = None
        """The one that `found` tells of, as it was called."""
        self.asked = 0
        self.unasked: dict[str, str] = {}
        """Why parts, by name, could not be asked."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Around a step whose compiled parts run compiled."""
        frames = sys.modules["torch._dynamo.eval_frame"]
        with listening((at(frames, "_callback_from_stance"), self._listener)):
            yield

    def _listener(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def callback_from_stance(callback: Any) -> Any:
            if self.found is None and not self._asking and callable(callback):
                part = _part_called(sys._getframe(1))
                # where no line of the user's says it, as of an optimizer's step, nothing is told
                known = part is not None and (part.module is not None or part.code is not None)
                if part is not None and known and id(part.function) not in self._met:
                    self._met.add(id(part.function))
                    self._asking = True
                    try:
                        self._ask(part)
                    finally:
                        self._asking = False
            return original(callback)

        return callback_from_stance

    def _ask(self, part: Part) -> None:
        name = self.name_of(part)
        try:
            part.args, part.kwargs, part.inputs = copies_of(part.args, part.kwargs)
            with warnings_unsaid(), self.put_back(part):
                why, values = self._asked(part)
        except Exception as error:  # whatever is odd about a part costs this look only
            why, values = f"called beside the step, it raised {type(error).__name__}", None
            if isinstance(error, _TooLarge):
                why = _TOO_LARGE
            elif "recompile" in str(error):
                why = _RECOMPILES
        if why:
            self.unasked[name] = why
            return
        self.asked += 1
        if values is not None:
            self.part, module = part, part.module
            self.found = CompiledFacts(
                step=0,
                part=name,
                part_type=type(module).__name__ if module is not None else None,
                location=self._location(part),
                values=values,
            )

    def _asked(self, part: Part) -> tuple[str, ApartFacts | None]:
        """(why it could not be asked, how it is apart from its source)"""
        with torch.compiler.set_stance("fail_on_recompile"):
            compiled = self.call(part, part.compiled())
        eager = self.eagerly(part)
        if self._drew and not _draws_alike():
            return _DRAWS, None
        far = farthest(compiled, eager, coarsest(part.inputs, self._device))
        if far is None:
            return "", None
        with torch.compiler.set_stance("fail_on_recompile"):
            again = self.call(part, part.compiled())
        if farthest(again, compiled, coarsest(part.inputs, self._device)) is not None:
            return _MOVES, None
        return "", self._beyond_rounding(part, compiled, eager)

    def _beyond_rounding(self, part: Part, compiled: Values, eager: Values) -> ApartFacts | None:
        """The first tensor, the outputs before the gradients, that is farther from the source's
        than rounding takes it."""
        eps = coarsest(part.inputs, self._device)
        spreads = self._spreads(part, eager, eps)
        exact = None
        if eps > torch.finfo(torch.float32).eps:
            with InFloat32():
                exact = self.eagerly(part)
        for name, value in eager.items():
            other = compiled.get(name)
            if other is None or (far := apart(other, value, name)) is None:
                continue
            allowed = max(_allowed(name, eps), _TIMES * spreads.get(name, 0.0))
            if exact is not None:
                reference = exact.get(name)
                off = apart(other, reference, name) if reference is not None else None
                own = apart(value, reference, name) if reference is not None else None
                if off is None or off.apart <= _NEARER * (own.apart if own else 0.0) + allowed:
                    continue
            if far.apart > allowed:
                return replace(far, allowed=allowed)
        return None

    def _spreads(self, part: Part, eager: Values, eps: float) -> dict[str, float]:
        """How far each value moves, relative, where inputs and weights are rounded otherwise."""
        generator = torch.Generator().manual_seed(0)
        weights = [p for p in self._parameters(part) if p.is_floating_point()]
        size = sum(t.numel() * t.element_size() for t in (*weights, *part.inputs))
        if size > _MOST_BYTES:
            raise _TooLarge
        known = [(t, t.detach().clone()) for t in (*weights, *part.inputs) if _is_real(t)]
        spreads: dict[str, float] = {}
        try:
            for _ in range(_PERTURBED):
                for tensor, value in known:
                    noise = 2 * torch.rand(value.shape, generator=generator).to(value.device) - 1
                    tensor.data.copy_(value.double() * (1 + eps * noise))
                for name, value in self.eagerly(part).items():
                    far = apart(value, eager[name], name) if name in eager else None
                    spreads[name] = max(spreads.get(name, 0.0), far.apart if far else 0.0)
        finally:
            for tensor, value in known:
                tensor.data.copy_(value)
        return spreads

    # -- calling -----------------------------------------------------------------------------------

    def eagerly(self, part: Part) -> Values:
        """What its source gives."""
        with run_eagerly():
            return self.call(part, part.function)

    def call(self, part: Part, function: Callable[..., Any]) -> Values:
        """The outputs, and the gradients of inputs and parameters; random states, buffers and the
        inputs are as they were at its start."""
        with self.put_back(part):
            args, kwargs, inputs = copies_of(part.args, part.kwargs)
            before = self._random.take()
            with their_side():
                out = function(*args, **kwargs)
            self._drew = _moved(before, self._random.take())
            return values_of(out, inputs, self._learning(part))

    def _learning(self, part: Part) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {
            name: p for name, p in self._named.items() if p.requires_grad
        }
        known = set(map(id, found.values()))
        module = part.module
        others = module.named_parameters() if module is not None else ()
        return found | {n: p for n, p in others if p.requires_grad and id(p) not in known}

    def _parameters(self, part: Part) -> list[torch.Tensor]:
        module = part.module
        own = module.parameters() if module is not None else ()
        return list({id(p): p for p in (*self._named.values(), *own)}.values())

    @contextlib.contextmanager
    def put_back(self, part: Part) -> Iterator[None]:
        """Random states and buffers are afterwards as they are now."""
        random, module = self._random.take(), part.module
        buffers = [*self._buffers, *(module.buffers() if module is not None else ())]
        kept = [(buffer, buffer.detach().clone()) for buffer in buffers]
        try:
            yield
        finally:
            random.restore(self._device)
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.data.copy_(value)

    # -- names -------------------------------------------------------------------------------------

    def name_of(self, part: Part) -> str:
        """The module's path in the model, or its class; the function's name."""
        module = part.module
        if module is not None:
            return self._names.get(id(module)) or type(module).__name__
        code = part.code
        return code.co_qualname if code is not None else "a compiled function"

    def _location(self, part: Part) -> SourceSpan | None:
        code, module = part.code, part.module
        if code is not None and frame_kind(code.co_filename) == USER:
            return _definition(code)
        if module is not None and id(module) in self._names:
            return self._build.module_made_at(self._names[id(module)])
        return None


def _part_called(frame: FrameType | None) -> Part | None:
    """What the wrapper, whose frame is one of the last few, is about to call."""
    for _ in range(6):
        if frame is None:
            return None
        if frame.f_code.co_name == "compile_wrapper":
            held = frame.f_locals
            if not {"fn", "self", "args", "kwargs"} <= held.keys():
                return None
            return Part(held["fn"], held["self"], held["args"], held["kwargs"])
        frame = frame.f_back
    return None


def _unwrapped(function: Any) -> Iterator[Any]:
    """The function, and what it wraps."""
    yield function
    with contextlib.suppress(ValueError):
        inner = inspect.unwrap(function)
        if inner is not function:
            yield inner


def _definition(code: CodeType) -> SourceSpan:
    """The line of a function that begins with `def`, behind its decorators."""
    line = code.co_firstlineno
    while (text := linecache.getline(code.co_filename, line)).lstrip().startswith(("@", "#")):
        line += 1
    return line_span(
        code.co_filename, line if text.strip() else code.co_firstlineno, code.co_qualname
    )


def farthest(one: Values, other: Values, eps: float) -> ApartFacts | None:
    """The first tensor that the usual rounding does not explain."""
    for name, value in other.items():
        far = apart(one[name], value, name) if name in one else None
        if far is not None and far.apart > _allowed(name, eps):
            return far
    return None


def _allowed(name: str, eps: float) -> float:
    return max(_ULPS * eps if eps < 1e-4 else 0.0, _floor(name))


def _floor(name: str) -> float:
    return _GRADIENT_FLOOR if name.startswith("gradient") else _FLOOR


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta


def _moved(before: Any, now: Any) -> bool:
    """Random numbers were drawn."""
    return not (
        before.python == now.python
        and torch.equal(before.cpu, now.cpu)
        and str(before.numpy) == str(now.numpy)
        and all(torch.equal(s, now.accelerators[d]) for d, s in before.accelerators.items())
    )


def _draws_alike() -> bool:
    """Compiled code draws as its source does."""
    config = sys.modules.get("torch._inductor.config")
    return bool(getattr(config, "fallback_random", False))
