"""Does one sample of a batch influence the model's output for another? An experiment on the first
step's input.

A network is called twice more on the arguments of a call in that step, the second time with sample
0 changed. After every torch function a fingerprint per sample tells which rows changed: the
first function that takes rows in which only sample 0 changed and gives back rows in which others
did too is where samples mix. Two forward passes without a graph cost less than the vector-Jacobian
product that would show the same, work for integer inputs, and say where.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.accelerator import in_widest, widest
from nanodoc.examination.network_calls import NetworkCall, mapped
from nanodoc.facts.graph import LeakFacts
from nanodoc.facts.ops import OpFacts
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import BatchNormBase
from nanodoc.tensors.plain import is_freed, local_of
from nanodoc.trace.eager import run_eagerly
from nanodoc.trace.modules import ModuleStack
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.vocabulary.calls import ATTENTION, RECURRENT, RESHAPING, SOFTMAXES

look_through(__file__)

SAMPLE = 0  # the first: a recurrence over the batch carries its change to every later one
# of a row's norm; float32 rows that nobody touched differ by about 1e-7 at the most
_TOLERANCE = 1e-5
_MOST_ELEMENTS = 1 << 26
_ATTENTION = (*ATTENTION, "_transformer_encoder_layer_fwd", "_native_multi_head_attention")
_SOFTMAX = (*SOFTMAXES, "softmin")
_RESHAPE = (*RESHAPING, "resize")

UNCHANGED, CONFINED, PAIRWISE, MIXED, UNKNOWN = (
    "unchanged",
    "confined",
    "pairwise",
    "mixed",
    "unknown",
)


@dataclass(slots=True)
class _Called:
    """One torch function call with the fingerprints of what went in and out."""

    name: str
    place: tuple[Place | None, Place | None]
    module: int
    inputs: list[Any]
    outputs: list[Any]
    shapes: tuple[tuple[int, ...], ...]


def find_leak(
    call: NetworkCall,
    device: torch.device,
    size: int,
    rewind: Callable[[], None],
    *,
    independent: bool,
) -> tuple[LeakFacts | None, str | None]:
    """The place where samples of a network's batch mix, or why that could not be checked. `rewind`
    puts the start of the step back."""
    try:
        changed = _change((call.args, call.kwargs), size)
        if isinstance(changed, str):
            return None, changed
        first, before = _run(call, (call.args, call.kwargs), device, size, rewind)
        second, after = _run(call, changed, device, size, rewind)
    except Exception as error:
        # the user's code on an input it has not seen: nothing can be concluded
        return None, f"calling the model again raised {type(error).__name__}"
    finally:
        rewind()
    leaves = [_state(a, b) for a, b in zip(first, second, strict=False)]
    unread = bool(leaves) and set(leaves) == {UNCHANGED}
    if MIXED not in leaves and not unread:
        return None, None
    for called, other in zip(before, after, strict=False):
        if called.name != other.name:
            break
        inputs = [_state(a, b) for a, b in zip(called.inputs, other.inputs, strict=False)]
        outputs = [_state(a, b) for a, b in zip(called.outputs, other.outputs, strict=False)]
        if MIXED in outputs and CONFINED in inputs and not {MIXED, UNKNOWN, PAIRWISE} & set(inputs):
            affected = max(
                len(_rows(a, b)) for a, b in zip(called.outputs, other.outputs, strict=False)
            )
            facts = _facts(call, called, affected, size, independent)
            # a model may read nothing of a sample, and no layer reads others in its place
            told = not unread or facts.kind in ("recurrent", "attention")
            return (replace(facts, unread=unread) if told else None), None
    return None, None


def _facts(
    call: NetworkCall, called: _Called, affected: int, size: int, independent: bool
) -> LeakFacts:
    modules = list(call.network.named_modules(prefix=call.path))
    path, module = modules[called.module] if called.module >= 0 else (None, None)
    own, caller = called.place
    name = called.name
    kinds = {
        "recurrent": RECURRENT,
        "attention": _ATTENTION,
        "softmax": _SOFTMAX,
        "reshape": _RESHAPE,
    }
    return LeakFacts(
        op=OpFacts(
            index=0,
            op=name,
            phase="forward",
            module=path,
            module_type=type(module).__name__ if module is not None else None,
            location=resolved(own),
            called_from=resolved(caller),
        ),
        kind=next((kind for kind, names in kinds.items() if name in names), "other"),
        sample=SAMPLE,
        affected=affected - 1,
        batch_size=size,
        shapes=called.shapes,
        layer_type=type(module).__name__
        if module is not None and type(module).__module__.startswith("torch.nn.")
        else None,
        independent=independent,
    )


# -- running ---------------------------------------------------------------------------------------


class _Fingerprints(TorchFunctionMode):
    def __init__(self, model: torch.nn.Module, size: int) -> None:
        super().__init__()
        self.modules = ModuleStack(model)
        self.calls: list[_Called] = []
        self._size = size

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            return call(func, *args, **(kwargs or {}))
        inputs = list(_floats((args, kwargs)))
        # before the call, which may write to them
        prints = [fingerprint(tensor, self._size) for tensor in inputs]
        shapes = tuple(tuple(tensor.shape) for tensor in inputs)
        out = call(func, *args, **(kwargs or {}))
        outputs = list(_floats(out))
        if outputs:
            self.calls.append(
                _Called(
                    name,
                    calling_places(1),
                    self.modules.current,
                    prints,
                    [fingerprint(t, self._size) for t in outputs],
                    shapes,
                )
            )
        return out


def _run(
    call: NetworkCall,
    inputs: Any,
    device: torch.device,
    size: int,
    rewind: Callable[[], None],
) -> tuple[list[Any], list[_Called]]:
    rewind()
    model, (enabled, dtype) = call.network, call.autocast
    args, kwargs = _copied(inputs)
    norms = [m for m in model.modules() if isinstance(m, BatchNormBase)]
    with (
        torch.no_grad(),
        torch.autocast(device.type, dtype=dtype, enabled=enabled),
        run_eagerly(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for norm in norms:  # they share statistics on purpose; rewinding puts their flags back
            norm.training = False
        watch = _Fingerprints(model, size)
        with watch.modules, watch:
            out = model(*args, **kwargs)
        return [fingerprint(tensor, size) for tensor in _floats(out)], watch.calls


# -- fingerprints ----------------------------------------------------------------------------------


def fingerprint(tensor: torch.Tensor, size: int) -> dict[Any, torch.Tensor]:
    """For every way the batch dimension may lie in `tensor`: two numbers per sample, in float64
    where the device has it, shape (size, 2).

    Ways: dimension d of that size; of a multiple of it, samples outermost ("B") or innermost ("b");
    the whole tensor ("all"). With two dimensions of that size also the part that has nothing to do
    with sample 0, shape (1, 2).
    """
    if (
        tensor.is_nested
        or not 0 < tensor.numel() <= _MOST_ELEMENTS
        or tensor.layout != torch.strided
        or is_freed(local_of(tensor))
    ):
        return {}
    found: dict[Any, torch.Tensor] = {"all": _numbers(tensor.reshape(1, -1))}
    exact = [d for d, length in enumerate(tensor.shape) if length == size]
    for d, length in enumerate(tensor.shape[:4]):
        if length == size:
            found[d] = _numbers(tensor.movedim(d, 0).reshape(size, -1))
        elif length % size == 0:
            split = tensor.movedim(d, 0)
            found[d, "B"] = _numbers(split.reshape(size, -1))
            found[d, "b"] = _numbers(
                split.reshape(length // size, size, -1).transpose(0, 1).reshape(size, -1)
            )
    if len(exact) == 2:
        rest = tensor.narrow(exact[0], 1, size - 1).narrow(exact[1], 1, size - 1)
        found["pair"] = _numbers(rest.reshape(1, -1))
    return found


def _numbers(rows: torch.Tensor) -> torch.Tensor:
    """A weighted sum that cancels by no symmetry, and the norm, of every row."""
    rows = in_widest(rows.detach())
    weights = torch.cos(
        torch.arange(rows.shape[1], device=rows.device, dtype=rows.dtype) * 0.7 + 0.3
    )
    return torch.stack([rows @ weights, torch.linalg.vector_norm(rows, dim=1)], 1)


def _changed(first: torch.Tensor, other: torch.Tensor) -> set[int]:
    scale = torch.maximum(first[:, 1], other[:, 1]).clamp_min(1e-30)
    differs = ((first - other).abs() > _TOLERANCE * scale[:, None]).any(1) | (
        first.isnan() != other.isnan()
    ).any(1)
    return set(differs.nonzero().flatten().tolist())


def _state(first: dict[Any, torch.Tensor], other: dict[Any, torch.Tensor]) -> str:
    """What the change of sample 0 did to one tensor."""
    ways = [way for way in first if way in other]
    if not ways:
        return UNKNOWN
    changed = {way: _changed(first[way], other[way]) for way in ways}
    if not changed["all"]:
        return UNCHANGED
    rows = [changed[way] for way in ways if way not in ("pair", "all")]
    if not rows:
        return UNKNOWN
    if any(way <= {SAMPLE} for way in rows):
        return CONFINED
    if "pair" in changed and not changed["pair"]:
        return PAIRWISE
    return MIXED


def _rows(first: dict[Any, torch.Tensor], other: dict[Any, torch.Tensor]) -> set[int]:
    ways = [way for way in first if way in other and way not in ("pair", "all")]
    return min((_changed(first[way], other[way]) for way in ways), key=len, default=set())


# -- changing one sample ---------------------------------------------------------------------------


def _change(inputs: Any, size: int) -> Any:
    """`inputs` with sample 0 changed so that zeros stay zeros and lengths stay lengths; why not, if
    nothing could be changed."""
    fitting, done = [], []

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if (
            tensor.is_nested
            or tensor.layout != torch.strided
            or tensor.dim() == 0
            or tensor.shape[0] != size
            or tensor.numel() == 0
        ):
            return tensor
        fitting.append(True)
        new = tensor.detach().clone()
        if new.is_floating_point():
            row = new[SAMPLE]
            factors = 1 + 0.3 * torch.cos(
                torch.arange(row.numel(), device=new.device, dtype=widest(new.device))
            ).reshape(row.shape)
            new[SAMPLE] = (in_widest(row) * factors).to(new.dtype)
        elif new.dim() > 1 and new.dtype != torch.bool and not new.is_complex():
            _swap_tokens(new[SAMPLE])
        if not torch.equal(new, tensor):
            done.append(True)
        return new

    changed = mapped(inputs, change)
    if done:
        return changed
    if fitting:
        return "sample 0 has no input to vary: only zeros, booleans, complex numbers or single ids"
    return f"no argument of the model is a dense tensor with first dimension {size}"


def _swap_tokens(row: torch.Tensor) -> None:
    """Swaps the first two neighbours that differ from each other and from the last element, which
    may be padding."""
    flat = row.reshape(-1) if row.is_contiguous() else row.contiguous().reshape(-1)
    values = flat[:64].tolist()
    last = int(flat[-1])
    for i in range(len(values) - 1):
        if values[i] != values[i + 1] and last not in (values[i], values[i + 1]):
            flat[i], flat[i + 1] = values[i + 1], values[i]
            return


def _copied(inputs: Any) -> Any:
    return mapped(inputs, lambda tensor: tensor.detach().clone())


def _floats(value: Any, depth: int = 5) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from _floats(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _floats(item, depth - 1)
    elif depth and hasattr(value, "__dataclass_fields__"):
        yield from _floats(list(vars(value).values()), depth - 1)
