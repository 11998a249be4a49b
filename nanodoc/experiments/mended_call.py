"""Which earlier call made a step raise: calls before the exception are changed, one at a time, and
the step is run again until a change lets it through.

A shape or a dtype that a function cannot take was made by an earlier call: a reduction over another
axis, tensors joined along the wrong one, a conversion too many. The line that raises is innocent
then. What is changed is what such a call can be told: its axis, whether it keeps that, the order of
its arguments; or the call is left out. Where none of that helps, an axis of size 1 is added to what
a call gives, or taken from it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from nanodoc.experiments.call_site import Applied
from nanodoc.experiments.call_variants import Change, Site, Sites, Variant, changed_at, left_out
from nanodoc.experiments.trial import StepTrials, Trial
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.trials import MendedCall
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call
from nanodoc.replay.step_state import StepState
from nanodoc.trace.spans import resolved
from nanodoc.vocabulary.calls import (
    ALONG_ONE_AXIS,
    AXIS_THIRD,
    CASTS,
    KEEPING_AXES,
    LAYOUTS,
    MATRIX_PRODUCTS,
    SUPERVISED,
)

look_through(__file__)

_MOST_TRIALS = 150
_NEAR = 12
"""Calls before the exception whose results get another axis."""
_MOST_AXES = 6
_LONGEST = 10.0  # seconds of one trial
_NOT_ALIKE = (*SUPERVISED, *MATRIX_PRODUCTS)
"""They tell their first two arguments apart."""

_MISFITS = ("RuntimeError", "ValueError", "IndexError", "TypeError", "NotImplementedError")


def may_be_mended(evidence: Evidence) -> bool:
    """The exception came from within the first step, and may say that values do not go together. A
    later step's calls are those of steps that ran: then it is its batch that is another."""
    failure = evidence.failure
    return (
        failure is not None
        and failure.type in _MISFITS
        and failure.phase not in ("setup", "data", "script", "optimizer")
        and evidence.failure_step == 0
    )


def mended_call(trials: StepTrials, capsule: StepState) -> MendedCall | None:
    """The change of one call that lets the step through. None where no change does, and where
    changes at several lines do: nothing tells then which of them is wrong."""
    noted = Sites(_variants, _other_axes)
    trials.outcome(capsule, noted)
    # what made the value that cannot be taken was called shortly before
    sites = list(noted.found.values())[::-1]
    found = _mended(trials, capsule, [(site, site.variants) for site in sites])
    found = found or _mended(trials, capsule, [(site, site.after) for site in sites[:_NEAR]])
    lines = {(one.location.file, one.location.line) for one in found}
    return found[0] if len(lines) == 1 else None


def _mended(
    trials: StepTrials, capsule: StepState, choice: Sequence[tuple[Site, Sequence[Variant]]]
) -> list[MendedCall]:
    """Of each site the first change that lets the step through."""
    found: list[MendedCall] = []
    tried = 0
    for site, variants in choice:
        where = resolved(site.place) if variants else None
        if where is None:
            continue
        for variant in variants:
            tried += 1
            if tried > _MOST_TRIALS or not trials.place.allows(trials.seconds, "earlier calls"):
                return found
            patch = changed_at(site, where, variant, applied := Applied())
            run = partial(trials.outcome, capsule, patch, applied)
            # with a change the step may wait for what never comes
            trial = trials.in_time(run, None, "earlier calls", most=_LONGEST)
            if trial is None:
                return found
            if _through(trial):
                found.append(
                    MendedCall(
                        op=site.name,
                        was=variant.was,
                        instead=variant.text,
                        location=where,
                        loss=trial.loss,
                    )
                )
                break
    return found


def _through(trial: Trial) -> bool:
    """The step came to its end; the part of a script's iteration that raised may have no loss."""
    return trial.applied and not trial.error and math.isfinite(trial.loss or 0.0)


def _variants(func: Any, name: str, args: Any, kwargs: Any) -> Iterator[Variant]:
    tensor = _first(args)
    if tensor is None or tensor.is_nested:
        return
    if name in ALONG_ONE_AXIS:
        yield from _along_another(func, name, tensor, args, kwargs)
    elif name in LAYOUTS or _converts(name, tensor, args, kwargs):
        yield left_out(name)
    elif name in _NOT_ALIKE and len(args) > 1 and _differ(tensor, args[1]):
        yield Variant("its first two arguments exchanged", "", _exchanged)


def _first(args: Any) -> torch.Tensor | None:
    value = args[0] if args else None
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


def _converts(name: str, tensor: torch.Tensor, args: Any, kwargs: Any) -> bool:
    """To another dtype, as far as the arguments tell."""
    if name not in CASTS:
        return False
    if name not in ("to", "type", "type_as"):
        return not str(tensor.dtype).endswith(name)
    given = [*args[1:], *kwargs.values()]
    dtypes = [getattr(value, "dtype", value) for value in given]
    return any(isinstance(one, torch.dtype) and one != tensor.dtype for one in dtypes)


def _differ(tensor: torch.Tensor, other: Any) -> bool:
    known = isinstance(other, torch.Tensor)
    return known and (tensor.shape, tensor.dtype) != (other.shape, other.dtype)


def _exchanged(func: Any, args: Any, kwargs: Any) -> Any:
    return call(func, args[1], args[0], *args[2:], **kwargs)


def _along_another(
    func: Any, name: str, tensor: torch.Tensor, args: Any, kwargs: Any
) -> Iterator[Variant]:
    """The call along each other axis, and with the axis kept or not."""
    at = _position(func, name)
    word = next((key for key in ("dim", "axis") if key in kwargs), None)
    given = kwargs[word] if word else args[at] if at < len(args) else None
    if given is None and name in ("cat", "stack", "chunk", "split", "unbind"):
        given = 0
    axes = tensor.dim() + (name == "stack")
    if type(given) is not int or axes > _MOST_AXES:
        return
    if name in KEEPING_AXES and len(args) <= at + 1:
        kept = bool(kwargs.get("keepdim", False))
        yield Variant(f"keepdim={not kept}", f"keepdim={kept}", _with("keepdim", not kept))
    for axis in range(axes):
        if axis != given % max(axes, 1):
            yield Variant(f"dim={axis}", f"dim={given}", _with_axis(word, at, axis))


def _position(func: Any, name: str) -> int:
    """Where the function takes its axis."""
    if inspect.isfunction(func):
        words = list(inspect.signature(func).parameters)
        return next((words.index(word) for word in ("dim", "axis") if word in words), len(words))
    return 2 if name in AXIS_THIRD else 1


def _with_axis(word: str | None, at: int, axis: int) -> Change:
    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if word is None and at < len(args):
            return call(func, *args[:at], axis, *args[at + 1 :], **kwargs)
        return call(func, *args, **{**kwargs, word or "dim": axis})

    return change


def _with(word: str, value: Any) -> Change:
    return lambda func, args, kwargs: call(func, *args, **{**kwargs, word: value})


def _other_axes(
    func: Any, name: str, args: Any, kwargs: Any, out: torch.Tensor
) -> Iterator[Variant]:
    """What the call gives, with an axis of size 1 taken away or put in."""

    def method(name: str, axis: int) -> Change:
        def change(func: Any, args: Any, kwargs: Any) -> Any:
            given = call(func, *args, **kwargs)
            return getattr(given, name)(axis) if isinstance(given, torch.Tensor) else given

        return change

    for axis, size in enumerate(out.shape):
        if size == 1:
            yield Variant(f"its result's .squeeze({axis})", "", method("squeeze", axis))
    if 0 < out.dim() < _MOST_AXES:
        for axis in range(1, out.dim() + 1):
            yield Variant(f"its result's .unsqueeze({axis})", "", method("unsqueeze", axis))
