"""The public functions that one step calls, seen above autograd: names as users write them, shapes,
and who made which argument.

The dispatcher sees `_log_softmax` and `nll_loss_forward`; what a user means is `cross_entropy`.
Tensors are known by weak references; nothing of the step is kept alive.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.facts.calls import ArgumentFacts, CallFacts, RangeFacts, StepCalls
from nanodoc.facts.crash import FailedCall, GivenFacts
from nanodoc.facts.notes import NO_NUMBER, NOTHING, Draft
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import DisableTorchFunction, current_autograd_node
from nanodoc.trace.call_options import (
    fresh_generator,
    number_notes,
    options_of,
    seed_of_draw,
    version_of,
)
from nanodoc.trace.modules import ModuleStack
from nanodoc.trace.ops import outputs_of, tensors_in
from nanodoc.trace.ranges import RANGED, out_of_range
from nanodoc.trace.spans import Place, caller_of, calling_places, resolved
from nanodoc.vocabulary.names import canonical, spelled

look_through(__file__)

Measure = Callable[[str, list[torch.Tensor], dict[str, Any], Any, list[ArgumentFacts]], Draft]

_WEIGHTS = ("weight", "pos_weight")
_MOST_CALLS = 50_000


class CallLog(TorchFunctionMode):
    """A context manager around a step; `finish` then gives the calls. `measure(name, tensors,
    options, output, arguments)` is asked about every call while its values are there."""

    def __init__(
        self,
        model: torch.nn.Module,
        leaves: Iterable[tuple[str, torch.Tensor]],
        measure: Measure | None = None,
    ) -> None:
        super().__init__()
        self._stack = ModuleStack(model)
        self._measure = measure
        self._made: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._leaves: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._addresses: dict[int, str] = {}
        self._calls: list[tuple[Any, ...]] = []
        self._losses: list[int] = []
        self._asked: dict[int, Place | None] = {}
        """The user's calls of the functions that ask for derivatives, by the calls' positions."""
        self.ranges: list[RangeFacts] = []
        """Indices and labels out of range."""
        self._raised: (
            tuple[
                BaseException, str, list[torch.Tensor], list[ArgumentFacts], str, Place | None, int
            ]
            | None
        ) = None
        for name, parameter in model.named_parameters():
            self._leaves[id(parameter)] = (weakref.ref(parameter), f"param:{name}")
        for name, tensor in leaves:
            self._leaves[id(tensor)] = (weakref.ref(tensor), name)
            address = _address(tensor)
            if address:
                self._addresses[address] = name

    def __enter__(self) -> CallLog:
        self._stack.__enter__()
        return super().__enter__()  # type: ignore[no-any-return]  # unannotated in torch

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._stack.__exit__()

    def count(self) -> int:
        """How many calls there are so far."""
        return len(self._calls)

    def on_loss(self, loss: torch.Tensor) -> None:
        """`loss` is about to be differentiated."""
        made = self._maker(loss)
        if made is not None:
            self._losses.append(made)

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # a checkpoint's recompute
        if len(self._calls) >= _MOST_CALLS or current_autograd_node() is not None:
            return call(func, *args, **kwargs)
        name = plain_name(func)
        self._note_ranges(name, args, kwargs)
        given = _given(args, kwargs)
        before = [self._argument(tensor) for tensor in given]
        written, generator = version_of(given), fresh_generator(name, kwargs)
        try:
            out = call(func, *args, **kwargs)
        except Exception as error:
            own, caller = calling_places(2)
            place, module = caller or own, self._stack.current
            shown = spelled(_name_of(func))
            self._raised = (error, shown, given, before, _settings(args, kwargs), place, module)
            raise
        made = outputs_of(out) if not isinstance(out, torch.Tensor) else [out]
        if not made:
            if name == "setitem" and given and (index := self._maker(given[0])) is not None:
                draft: Draft = self._calls[index][-1]
                draft.notes = replace(draft.notes, overwritten=True)
            return out
        if name == "get" and not (given and _shares(made[0], given[0])):
            return out  # an attribute: .grad, .grad_fn
        options, draft = self._looked_at(func, name, args, kwargs, given, out, before)
        own, caller = calling_places(2)
        if name == "grad":
            self._asked[len(self._calls)] = caller_of(caller or own)
        index = len(self._calls)
        in_place = any(made[0] is argument for argument in given)
        number = number_notes(name, args, in_place=in_place, turned=_is_turned(func))
        seed = seed_of_draw(generator)
        if number is not NO_NUMBER or seed is not None or in_place:
            times = written if in_place else None
            draft.notes = replace(draft.notes, number=number, seed=seed, written=times)
        view = bool(given) and not in_place and _shares(made[0], given[0])
        self._calls.append(
            (
                name,
                self._stack.current,
                own,
                caller,
                tuple(before),
                tuple(made[0].shape),
                made[0].requires_grad,
                view,
                in_place,
                options,
                draft,
            )
        )
        # what an optimizer writes into stays the parameter; one call may write into many
        fresh = [t for t in made if not (in_place and self._is_parameter(t))]
        self._made |= {id(tensor): (weakref.ref(tensor), index) for tensor in fresh}
        return out

    def _note_ranges(self, name: str, args: Any, kwargs: Any) -> None:
        if name not in RANGED:
            return
        path = self._stack.modules[self._stack.current] if self._stack.current >= 0 else None
        found = out_of_range(name, args, kwargs, path)
        if found is not None:
            self.ranges.append(found)

    def _is_parameter(self, tensor: torch.Tensor) -> bool:
        known = self._leaves.get(id(tensor))
        return known is not None and known[1].startswith("param:") and known[0]() is tensor

    def _looked_at(
        self, func: Any, name: str, args: Any, kwargs: Any, *seen: Any
    ) -> tuple[dict[str, Any], Draft]:
        """(the call's options, what was measured of its values); nothing where the values can't be
        read: of tensors inside of vmap, of those without memory. The methods that a tensor's class
        has of its own are not asked."""
        with contextlib.suppress(Exception), DisableTorchFunction():
            options = options_of(func, name, args, kwargs)
            given, out, before = seen
            if self._measure is None:
                return options, Draft(NOTHING)
            return options, self._measure(name, given, options, out, before)
        return {}, Draft(NOTHING)

    def _argument(self, tensor: torch.Tensor) -> ArgumentFacts:
        made = self._maker(tensor)
        return ArgumentFacts(
            shape=() if tensor.is_nested else tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            requires_grad=tensor.requires_grad,
            made_by=made,
            leaf=self._leaf(tensor) if made is None else None,
        )

    def _maker(self, tensor: torch.Tensor) -> int | None:
        known = self._made.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _leaf(self, tensor: torch.Tensor) -> str | None:
        known = self._leaves.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        return self._addresses.get(_address(tensor))  # a detached alias

    def made_of(self, argument: ArgumentFacts) -> tuple[str, ArgumentFacts | None] | None:
        """(name, first argument) of the call that made `argument`."""
        if argument.made_by is None:
            return None
        name, before = self._calls[argument.made_by][0], self._calls[argument.made_by][4]
        return name, before[0] if before else None

    def failed(
        self, error: BaseException, made_at: Callable[[str], SourceSpan | None]
    ) -> FailedCall | None:
        """The call that raised `error`, with what it was given; None where no public function of
        torch's did."""
        if self._raised is None or self._raised[0] is not error:
            return None
        _, name, tensors, arguments, settings, place, module = self._raised
        self._raised = None  # it holds tensors
        path, kind = self._stack.modules[module] if module >= 0 else (None, None)
        calls = self.finish(made_at)
        given = []
        for tensor, argument in zip(tensors, arguments, strict=True):
            direct = calls.maker(argument)
            # nanodoc's own move to the device
            while (
                direct is not None
                and direct.site is None
                and direct.same_values
                and direct.arguments
            ):
                argument = direct.arguments[0]
                direct = calls.maker(argument)
            maker = calls.origin(argument)
            made = maker if isinstance(maker, CallFacts) else None
            leaf = maker.leaf if isinstance(maker, ArgumentFacts) else None
            layer = (
                leaf.removeprefix("param:").rpartition(".")[0]
                if leaf is not None and leaf.startswith("param:")
                else None
            )
            given.append(
                GivenFacts(
                    shape=argument.shape,
                    dtype=argument.dtype,
                    device=str(tensor.device),
                    leaf=leaf,
                    made_by=(direct or made).name if direct or made else None,  # type: ignore[union-attr]  # one of them is
                    made_at=made_at(layer)
                    if layer
                    else (direct.site if direct else None) or (made.site if made else None),
                    module=(direct or made).module if direct or made else None,  # type: ignore[union-attr]  # one of them is
                    **_range_of(tensor),
                )
            )
        return FailedCall(
            name=name,
            module=path,
            module_type=kind,
            location=resolved(place),
            layer_at=made_at(path) if path else None,
            given=tuple(given),
            settings=settings,
        )

    def finish(self, made_at: Callable[[str], SourceSpan | None] = lambda path: None) -> StepCalls:
        """Every call. One that no line of the user's made (nanodoc itself calls the model) gets the
        line that made its layer, as `made_at(path)` knows it."""
        modules = self._stack.modules
        listed = {index: made_at(modules[index][0]) for index in self._stack.listed}
        calls = []
        for index, (
            name,
            module,
            own,
            caller,
            before,
            shape,
            grad,
            view,
            in_place,
            options,
            draft,
        ) in enumerate(self._calls):
            path, kind = modules[module] if module >= 0 else (None, None)
            calls.append(
                CallFacts(
                    index=index,
                    name=name,
                    module=path,
                    module_type=kind,
                    location=resolved(own) or (made_at(path) if path and caller is None else None),
                    called_from=resolved(caller),
                    layer_at=listed.get(module),
                    asked_by=resolved(self._asked.get(index)),
                    arguments=before,
                    shape=shape,
                    requires_grad=grad,
                    view=view,
                    in_place=in_place,
                    options=options,
                    notes=draft.notes,
                )
            )
        return StepCalls(calls=tuple(calls), losses=tuple(self._losses))


def _is_turned(func: Any) -> bool:
    """`1 - x`, which is a method of x."""
    return "rsub" in _name_of(func)


def plain_name(func: Any) -> str:
    """The one name of all spellings of a function: `__rsub__`, `sub_` and `subtract` are `sub`."""
    return canonical(_name_of(func))


def _name_of(func: Any) -> str:
    return str(getattr(func, "__name__", func))


def _given(args: Any, kwargs: Any) -> list[torch.Tensor]:
    found = tensors_in(args)
    # weights of a loss are no arguments to compare shapes with
    return found + tensors_in(
        value for key, value in kwargs.items() if key not in (*_WEIGHTS, "out")
    )


def _range_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Of floating values; nothing where they cannot be read: the device may be lost."""
    if not tensor.is_floating_point() or not tensor.numel():
        return {}
    try:
        with torch.no_grad(), DisableTorchFunction():
            values = tensor.detach()
            finite = values[torch.isfinite(values)]
            found: dict[str, Any] = {"nonfinite": values.numel() - finite.numel()}
            if finite.numel():
                found |= {"minimum": float(finite.min()), "maximum": float(finite.max())}
    except (RuntimeError, NotImplementedError):
        return {}
    return found


def _settings(args: Any, kwargs: Any) -> str:
    """What was given besides tensors, where it is short and plain, and the weights of a loss."""
    plain = [
        str(value)
        for value in args
        if isinstance(value, (int, float, tuple, list)) and not tensors_in([value])
    ]
    plain += [
        f"{key}={value}"
        for key, value in kwargs.items()
        if isinstance(value, (int, float, str, tuple, list)) and not tensors_in([value])
    ]
    plain += [
        f"{key} {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        for key, value in kwargs.items()
        if key in _WEIGHTS and isinstance(value, torch.Tensor)
    ]
    return ", ".join(plain)[:160]


def _address(tensor: torch.Tensor) -> int:
    try:
        return (
            int(tensor.untyped_storage().data_ptr())
            if tensor.layout is torch.strided and not tensor.is_nested
            else 0
        )
    except (RuntimeError, NotImplementedError):
        return 0


def _shares(first: torch.Tensor, other: torch.Tensor) -> bool:
    address = _address(first)
    return address != 0 and address == _address(other) and first is not other
