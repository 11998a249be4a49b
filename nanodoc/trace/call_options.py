"""What a call was given besides tensors, and what its arguments say of it by themselves."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from typing import Any

import torch

from nanodoc.facts.notes import NO_NUMBER, NumberNotes
from nanodoc.instrument.torch_private import DisableTorchFunction
from nanodoc.vocabulary.calls import ADDITIONS, BINARY, CLASSIFICATION, DRAWS, FACTORS

_MOST_CLASSES = 1_000  # whose weights are kept
# What rules ask for, and where torch's C functions take it.
_OPTIONS = (
    "dim",
    "reduction",
    "ignore_index",
    "label_smoothing",
    "training",
    "p",
    "log_target",
    "num_embeddings",
    "padding_idx",
    "is_causal",
    "dropout_p",
)
_POSITIONS = {
    ("softmax", 1): "dim",
    ("log_softmax", 1): "dim",
    ("scaled_dot_product_attention", 4): "dropout_p",
    ("scaled_dot_product_attention", 5): "is_causal",
}
_DRAWING = (*DRAWS, "uniform", "bernoulli", "multinomial", "dropout", "exponential")
_MOST_ROWS = 1 << 16
_WHOLE = (torch.int64, torch.int32)
_EXACT = 1 << 53
"""Whole numbers below it are exact as a float."""
_SIMPLE = (int, float, bool, str, type(None))

# a function may hold a whole training in its closure: the cache must not keep it alive
_SIGNATURES: weakref.WeakKeyDictionary[Any, tuple[str, ...] | None] = weakref.WeakKeyDictionary()


def _signature(func: Any) -> tuple[str, ...] | None:
    if func not in _SIGNATURES:
        try:
            _SIGNATURES[func] = tuple(inspect.signature(func).parameters)
        except (TypeError, ValueError):
            _SIGNATURES[func] = None
    return _SIGNATURES[func]


def options_of(func: Any, name: str, args: Any, kwargs: Any) -> dict[str, Any]:
    """The options that rules ask for, by name; class weights as numbers."""
    names = _signature(func) if getattr(func, "__code__", None) is not None else None
    found: dict[str, Any] = {}
    for position, value in enumerate(args):
        word = (
            names[position] if names and position < len(names) else _POSITIONS.get((name, position))
        )
        if word in _OPTIONS and isinstance(value, _SIMPLE):
            found[word] = value
    found.update(
        {
            key: value
            for key, value in kwargs.items()
            if key in _OPTIONS and isinstance(value, _SIMPLE)
        }
    )
    weight = kwargs.get("weight", args[2] if len(args) > 2 else None)
    if name in CLASSIFICATION and isinstance(weight, torch.Tensor):
        found["weights"] = tuple(weight.tolist()) if 1 < weight.numel() <= _MOST_CLASSES else ()
    if name == "ctc_loss":
        found |= _ctc_lengths(args, kwargs)
    if name == "getitem" and len(args) > 1:
        found |= _rows_taken(args[1])
    weight = kwargs.get("pos_weight")
    if name == BINARY and isinstance(weight, torch.Tensor) and weight.numel() == 1:
        found["weights"] = (1.0, float(weight))  # of labels 0 and 1
    return found


def _rows_taken(index: Any) -> dict[str, Any]:
    """Which rows a list or an array of numbers takes, as one number."""
    if not isinstance(index, list) and type(index).__module__ != "numpy":
        return {}
    with contextlib.suppress(TypeError, ValueError, RuntimeError):  # a list of anything
        rows = torch.as_tensor(index)
        if rows.dim() == 1 and 0 < rows.numel() <= _MOST_ROWS and rows.dtype in _WHOLE:
            return {"rows": hash(tuple(rows.tolist()))}
    return {}


def _ctc_lengths(args: Any, kwargs: Any) -> dict[str, Any]:
    """`blank` and `target_lengths` of a call of `torch.nn.functional.ctc_loss`."""
    lengths = kwargs.get("target_lengths", args[3] if len(args) > 3 else None)
    if isinstance(lengths, torch.Tensor):
        lengths = lengths.tolist() if lengths.dim() else [int(lengths)]
    blank = kwargs.get("blank", args[4] if len(args) > 4 else 0)
    if not isinstance(lengths, (list, tuple)) or not isinstance(blank, int):
        return {}
    return {"blank": blank, "target_lengths": tuple(map(int, lengths))}


def version_of(given: list[torch.Tensor]) -> int:
    """How often the first of the tensors had been written to."""
    with contextlib.suppress(RuntimeError):  # of inference tensors
        return given[0]._version if given else 0
    return 0


def number_notes(name: str, args: Any, *, in_place: bool, turned: bool) -> NumberNotes:
    """What the call does with a number, of one that is `turned` (1 - x) what x is taken from; no
    notes where it takes no number, or is no arithmetic."""
    if len(args) < 2:
        return NO_NUMBER
    if name in FACTORS:
        factor = _factor(name, args[1], in_place=in_place)
        return NumberNotes(factor=factor) if factor is not None else NO_NUMBER
    number = args[1]
    if name not in ADDITIONS or not isinstance(number, (int, float)) or isinstance(number, bool):
        return NO_NUMBER
    if turned:
        return NumberNotes(taken_from=float(number))
    return NumberNotes(offset=float(number) if name == "add" else -float(number))


def _factor(name: str, by: Any, *, in_place: bool) -> float | None:
    """What a multiplication or division makes of a number: by a number; in place also by a tensor,
    of which the factor that is nearest to 1 counts."""
    if not in_place and not isinstance(by, (int, float)):
        return None
    with contextlib.suppress(Exception), torch.no_grad(), DisableTorchFunction():
        size = torch.as_tensor(by).detach().double().abs().flatten()
        factor = float(size[size.log().abs().argmin()])
        return factor if name == "mul" else 1 / factor
    return None


def fresh_generator(name: str, kwargs: Any) -> torch.Generator | None:
    """The generator that a call may be about to draw from, where nothing has been drawn from it
    since it was seeded: the one it is given, else the CPU's own."""
    if not name.startswith(_DRAWING):
        return None
    with contextlib.suppress(Exception):
        given = kwargs.get("generator")
        generator: torch.Generator = given if given is not None else torch.default_generator
        return generator if _is_fresh(generator) else None
    return None


def seed_of_draw(generator: torch.Generator | None) -> float | None:
    """The seed of the generator, where the call has drawn from it: dropout in eval mode doesn't."""
    with contextlib.suppress(Exception):
        if generator is not None and not _is_fresh(generator):
            return float(generator.initial_seed() % _EXACT)
    return None


def _is_fresh(generator: torch.Generator) -> bool:
    seeded = torch.Generator(device=generator.device).manual_seed(generator.initial_seed())
    return torch.equal(seeded.get_state(), generator.get_state())
