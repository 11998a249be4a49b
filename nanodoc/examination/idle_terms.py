"""Terms of a loss that train nothing: each parameter that such a term reaches has its gradients
cleared before an optimizer steps with them, while other terms of the same loss are stepped with.
And parameters of which every gradient is cleared, while their optimizer steps with others.

The step is run again. The graph of each loss is walked from the loss through what is linear (sums,
means, differences, factors without a gradient) to its terms, and from each term to the parameters
it reaches. The calls of zero_grad and of optimizers' steps that follow the loss, and those with
which the next step begins, say what becomes of their gradients.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.inspection import IdleTermFacts, UntrainedFacts
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.taps import BEFORE_STEP, MODULE_ZERO_GRAD, ZERO_GRAD, listening
from nanodoc.instrument.torch_private import current_autograd_node
from nanodoc.trace.calls import plain_name

_MOST_TERMS = 16
_MOST_NODES = 200_000  # of a graph
_ALL_ARE_TERMS = ("Add", "Sub", "Stack", "Cat")
_ONE_IS_THE_TERM = (
    *("Mean", "Sum", "Neg", "Mul", "Div", "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze"),
    *("Expand", "ToCopy", "T", "Transpose", "Permute", "Clone", "Alias", "Rsub"),
)

Node = Any
Key = tuple[str, int]
"""The name of a call, and how many of that name came before it."""
_STEPPED, _CLEARED, _LOSS = "stepped", "cleared", "loss"


class TermsLook(TorchFunctionMode):
    """A context manager around a step that is run again."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__()
        self._held = {id(o): _held(o) for o in optimizers}
        self._seen: Counter[str] = Counter()
        self._made_by: dict[Node, Key] = {}
        self._names: dict[int, torch.Tensor] = {}
        """Parameters that terms reach; held, so that their identities stay theirs."""
        self._events: list[tuple[str, Any]] = []
        self._stepped: list[tuple[int, torch.optim.Optimizer]] = []
        """With their places among the events."""
        self._set: set[int] = set()
        """Parameters with a gradient when their optimizer steps."""
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> TermsLook:
        super().__enter__()
        self._undo.enter_context(
            listening(
                (BEFORE_STEP, self._steps),
                (ZERO_GRAD, self._clears),
                (MODULE_ZERO_GRAD, self._clears_module),
            )
        )
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._undo.close()
        self._made_by.clear()

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if current_autograd_node() is not None:
            return call(func, *args, **(kwargs or {}))
        name = plain_name(func)
        key = (name, self._seen[name])
        self._seen[name] += 1
        out = call(func, *args, **(kwargs or {}))
        for value in out if isinstance(out, tuple) else (out,):
            node = getattr(value, "grad_fn", None) if isinstance(value, torch.Tensor) else None
            if node is not None:
                self._made_by.setdefault(node, key)
        return out

    def on_loss(self, loss: torch.Tensor) -> None:
        """`loss` is about to be differentiated."""
        if loss.grad_fn is not None:
            terms = list(self._terms(loss.grad_fn))
            if len(terms) > _MOST_TERMS:
                terms = [(self._made_by.get(loss.grad_fn), self._reached(loss.grad_fn))]
            self._events.append((_LOSS, terms))

    def _steps(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():  # gradients may have been set by hand
            self._set |= {id(p) for p in _parameters(optimizer) if _is_set(p)}
        self._events.append((_STEPPED, _held(optimizer)))
        self._stepped.append((len(self._events) - 1, optimizer))

    def _clears(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._events.append((_CLEARED, _held(optimizer)))
            return original(optimizer, *args, **kwargs)

        return zero_grad

    def _clears_module(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(module: Any, *args: Any, **kwargs: Any) -> Any:
            self._events.append((_CLEARED, {id(p) for p in module.parameters()}))
            return original(module, *args, **kwargs)

        return zero_grad

    def _terms(self, root: Node) -> Iterator[tuple[Key | None, set[int]]]:
        """(the call that made a term, the parameters that it reaches)"""
        waiting: list[tuple[Node, Key | None]] = [(root, None)]
        while waiting:
            node, nearest = waiting.pop()
            nearest = self._made_by.get(node, nearest)
            kind = type(node).__name__.partition("Backward")[0]
            inner = [following for following, _ in node.next_functions if following is not None]
            if kind in _ALL_ARE_TERMS or (kind in _ONE_IS_THE_TERM and len(inner) == 1):
                waiting += [(one, nearest) for one in inner]
            else:
                yield nearest, self._reached(node)

    def _reached(self, root: Node) -> set[int]:
        """The parameters that gradients of this node come to; none of a graph that is too large."""
        seen, waiting, found = {root}, [root], set()
        while waiting and len(seen) < _MOST_NODES:
            node = waiting.pop()
            if (leaf := getattr(node, "variable", None)) is not None:
                found.add(id(leaf))
                self._names[id(leaf)] = leaf
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return found if not waiting else set()

    def idle(self) -> Iterator[tuple[Key, set[int], set[int]]]:
        """(the call that made such a term, what it reaches, what other terms of its loss reach that
        is stepped with); of terms whose parameters are all stepped with something else, and that
        are no part of another loss which trains them."""
        stepped = {p for kind, held in self._events if kind == _STEPPED for p in held}
        at_work: set[Key | None] = set()
        found = []
        for place, (kind, terms) in enumerate(self._events):
            if kind != _LOSS:
                continue
            later = [*self._events[place + 1 :], *self._events[:place]]
            used = [{p for p in reached if _first(later, p) == _STEPPED} for _, reached in terms]
            at_work |= {key for (key, _), some in zip(terms, used, strict=True) if some}
            trained = set[int]().union(*used)
            for key, reached in terms:
                lost = reached <= stepped and all(_first(later, p) == _CLEARED for p in reached)
                if reached and lost and trained and key is not None:
                    found.append((key, reached, trained))
        return (one for one in found if one[0] not in at_work)

    def untrained(self) -> tuple[Key, list[int], int] | None:
        """(the call that made the loss which an optimizer steps with, parameters of that optimizer
        of which each gradient is cleared before, how many others it steps with)"""
        reached: dict[int, list[int]] = {}
        for place, (kind, terms) in enumerate(self._events):
            for _, parameters in terms if kind == _LOSS else ():
                for p in parameters:
                    reached.setdefault(p, []).append(place)
        ends = {
            p: {_first([*self._events[at + 1 :], *self._events[:at]], p) for at in places}
            for p, places in reached.items()
        }
        for place, optimizer in self._stepped:
            held = _held(optimizer)
            lost = [p for p in held - self._set if ends.get(p) == {_CLEARED}]
            trained = {p for p in held if _STEPPED in ends.get(p, ())}
            made = [
                key
                for kind, terms in self._events[:place]
                for key, reached in (terms if kind == _LOSS else ())
                if key is not None and reached & trained
            ]
            if lost and made:
                return made[-1], lost, len(trained)
        return None


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _held(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(p) for p in _parameters(optimizer)}


def _is_set(parameter: torch.Tensor) -> bool:
    gradient = parameter.grad
    return gradient is not None and bool(gradient.detach().any())


def _first(events: Sequence[tuple[str, Any]], parameter: int) -> str | None:
    """What happens first to the gradient of a parameter."""
    return next((kind for kind, held in events if kind != _LOSS and parameter in held), None)


def idle_term(look: TermsLook, calls: StepCalls, named: dict[int, str]) -> IdleTermFacts | None:
    """The first term that trains nothing and is made of what is trained beside it, by the calls of
    the step. `named` are the parameters' names by identity. A term that is made of nothing of that
    may be half of a distance which is written once for two optimizers."""
    for key, reached, trained in look.idle():
        made = calls.known_again(key)
        if made is None:
            continue
        cut = _cut(calls, made, {named[p] for p in trained if p in named})
        if cut is not None:
            return IdleTermFacts(
                call=made.index,
                reaches=len(reached),
                reached=next((named[p] for p in reached if p in named), None),
                trained=len(trained),
                cut=cut,
            )
    return None


def untrained(look: TermsLook, calls: StepCalls, named: dict[int, str]) -> UntrainedFacts | None:
    """Parameters of an optimizer that it never has a gradient of when it steps."""
    found = look.untrained()
    if found is None:
        return None
    key, lost, trained = found
    made = calls.known_again(key)
    names = [named[p] for p in lost if p in named]
    if made is None or not names:
        return None
    return UntrainedFacts(loss=made.index, names=tuple(sorted(names)), trained=trained)


def _cut(calls: StepCalls, made: CallFacts, wanted: set[str]) -> int | None:
    """The call that ends the gradients on their way from the term to what is trained, if the term
    is made of that."""
    for index in sorted(calls.behind(made)[0], reverse=True):
        one = calls.calls[index]
        if one.requires_grad or not any(a.requires_grad for a in one.arguments):
            continue
        if any(leaf.parameter in wanted for leaf in calls.behind(one)[1]):
            return index
    return None
