"""Nested batches: walking, moving and naming the tensors in any nesting of containers."""

from __future__ import annotations

import copy
import dataclasses
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

# containers in each other: what lies deeper is nobody's batch, and Python's stack is short
_DEEPEST = 40
_PLAIN = (list, tuple)
_SINGLE = frozenset({bool, int, float, complex, str, bytes, type(None)})  # hold nothing
_PART = re.compile(r"\[(\d+)\]|\['([^']*)'\]|\.(\w+)")


def map_tensors(
    value: Any,
    change: Callable[[torch.Tensor], torch.Tensor],
    depth: int = _DEEPEST,
    known: dict[int, tuple[Any, Any]] | None = None,
) -> Any:
    """`value` with every tensor replaced by `change(tensor)`; containers keep their type,
    everything else is kept. A container that is held twice is made anew once: `known` holds those
    that were met."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if not depth or not _is_container(value):
        return value
    known = {} if known is None else known
    if id(value) not in known:
        made = _rebuilt(value, lambda inner: map_tensors(inner, change, depth - 1, known))
        known[id(value)] = value, made  # the old one is held, so that its identity stays its own
    return known[id(value)][1]


def _is_container(value: Any) -> bool:
    kind = type(value)
    if kind in _SINGLE:
        return False
    return (
        kind in _PLAIN
        or isinstance(value, (list, tuple, Mapping))
        or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    )


def _rebuilt(value: Any, inner: Callable[[Any], Any]) -> Any:
    """A container of what `inner` makes of its values."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(inner(item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(inner(item) for item in value) if type(value) in _PLAIN else value
    if not isinstance(value, Mapping):
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(twin, field.name, inner(getattr(value, field.name)))
        return twin
    changed = {key: inner(item) for key, item in value.items()}
    if type(value) is dict:
        return changed
    if type(value) is types.MappingProxyType:
        return types.MappingProxyType(changed)
    # OrderedDict, BatchEncoding and their kin keep their own attributes
    rebuilt = copy.copy(value)
    if hasattr(rebuilt, "update"):
        rebuilt.update(changed)
        return rebuilt
    return changed


def in_own_containers(value: Any) -> Any:
    """The same tensors in containers made anew: who writes into those of `value` does not change
    it. `value` itself where its containers cannot be made anew."""
    try:
        kind = type(value)
        if kind in _PLAIN:
            for item in value:
                if type(item) is not torch.Tensor:
                    break
            else:
                return kind(value)
        return map_tensors(value, lambda tensor: tensor)
    except Exception:  # a class of the user's may refuse to be copied
        return value


def lies_on(value: Any, device: torch.device) -> bool:
    """Every tensor of `value` is on `device` already."""
    flat = _flat_tensors(value)
    for tensor in tensors_of(value) if flat is None else flat:
        own = tensor.device
        if own == device:
            continue
        if own.type != device.type:
            return False
        if device.index is not None and own.index not in (None, device.index):
            return False
    return True


def takes_hooks(module: torch.nn.Module) -> bool:
    """TorchScript's modules raise where a hook is registered."""
    return not isinstance(module, torch.jit.ScriptModule)


def to_device(value: Any, device: torch.device) -> Any:
    """`value` with its tensors on `device`; on the same device this is the very same tensors."""
    return map_tensors(value, lambda tensor: tensor.to(device, non_blocking=True))


def tensor_leaves(
    value: Any, path: str = "batch", depth: int = _DEEPEST, seen: dict[int, Any] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor with its path as Python would write it: `batch[0]['ids'].mask`. What a container
    holds that is held twice comes once, under its first path; `seen` are those that were met."""
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if not depth or not _is_container(value):
        return
    seen = {} if seen is None else seen
    if id(value) in seen:
        return
    seen[id(value)] = value  # held, so that its identity stays its own
    for part, item in _parts(value):
        if isinstance(item, torch.Tensor):  # as the call would, and faster
            yield f"{path}{part}", item
        else:
            yield from tensor_leaves(item, f"{path}{part}", depth - 1, seen)


def tensors_of(value: Any) -> Sequence[torch.Tensor]:
    """The tensors that `tensor_leaves` gives, without their paths; asked for at every step."""
    found = _flat_tensors(value)
    return [tensor for _, tensor in tensor_leaves(value)] if found is None else found


def tensors_in(batches: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors of several batches; what they hold together comes once, but for plain tensors."""
    found: list[torch.Tensor] = []
    for batch in batches:
        tensors = _flat_tensors(batch)
        if tensors is None:
            return [tensor for _, tensor in tensor_leaves(list(batches))]
        found += tensors
    return found


def holds_only_tensors(value: Any) -> bool:
    """Nothing else is in it, and no container."""
    return _flat_tensors(value) is not None


def _flat_tensors(value: Any) -> Sequence[torch.Tensor] | None:
    """The tensors of the usual batch: a tensor, or a plain container of plain tensors, which need
    not be walked. None for any other."""
    kind = type(value)
    if kind is torch.Tensor:
        return (value,)
    if kind in _SINGLE:
        return ()
    if kind in _PLAIN:
        items: Sequence[Any] = value
    elif getattr(kind, "values", None) is dict.values:
        items = list(value.values())
    else:
        return None
    for item in items:  # at every step, where a generator is felt
        if type(item) is not torch.Tensor:
            return None
    return items


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The values of a container, each with what Python writes behind the container to get it."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        for name, item in zip(value._fields, value, strict=True):
            yield f".{name}", item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{key!r}]", item
    else:
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name)


def batches_among(values: Iterable[Any]) -> list[Any]:
    """Those that hold tensors; of a loader's batch that comes with its number, the batch."""
    found = []
    for value in values:
        parts = value if type(value) is tuple else ()
        holding = [part for part in parts if any(tensor_leaves(part))]
        alone = len(holding) == 1 and not isinstance(holding[0], torch.Tensor)
        if holding or any(tensor_leaves(value)):
            found.append(holding[0] if alone else value)
    return found


def graphs_among(values: Iterable[Any]) -> list[dict[str, Any]]:
    """What graphs of torch_geometric hold, which are no containers to Python, by name."""
    return [
        value.to_dict()
        for value in values
        if any(kind.__module__.startswith("torch_geometric.data") for kind in type(value).__mro__)
        and callable(getattr(type(value), "to_dict", None))
    ]


def keys_of(path: str) -> list[int | str]:
    """The keys of a path that `tensor_leaves` gave: `batch['x'][0].y` is "x", 0, "y"."""
    parts = _PART.findall(path.partition("batch")[2])
    return [int(number) if number else key or attribute for number, key, attribute in parts]


def leading_size(value: Any) -> int:
    """The number of samples in a list, or of items in the fields, else the length of the first
    tensor's first dimension: the batch's size as far as a glance tells, 0 without any."""
    flat = None if type(value) is list else _flat_tensors(value)
    if flat is not None:
        for tensor in flat:
            if tensor.dim():
                return int(tensor.size(0))
        return 0
    if is_list_of_samples(value):
        return len(value)
    return size_of_fields(value) or next(
        (int(tensor.size(0)) for _, tensor in tensor_leaves(value) if tensor.dim()), 0
    )


def other_leaves(
    value: Any, depth: int = _DEEPEST, seen: dict[int, Any] | None = None
) -> Iterator[Any]:
    """Everything in a batch that is no tensor and no container; what is in a container that is held
    twice comes once."""
    if isinstance(value, torch.Tensor) or not depth:
        return
    if not _is_container(value):
        yield value
        return
    seen = {} if seen is None else seen
    if id(value) not in seen:
        seen[id(value)] = value  # held, so that its identity stays its own
        for _, item in _parts(value):
            yield from other_leaves(item, depth - 1, seen)


def size_of_fields(value: Any) -> int | None:
    """The number of samples of a batch whose fields are lists with one item per sample, as
    `tuple(zip(*samples))` makes it for images with their boxes. Fields that are tensors have as
    many rows. None for any other batch."""
    if isinstance(value, Mapping):
        fields = list(value.values())
    elif type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        fields = list(value)
    else:
        return None
    lists = [field for field in fields if type(field) in (list, tuple)]
    if not lists or len({len(field) for field in lists}) > 1:
        return None
    size, kinds = len(lists[0]), [{_kind(item) for item in field} for field in lists]
    if any(
        isinstance(field, torch.Tensor) and (not field.dim() or field.size(0) != size)
        for field in fields
    ):
        return None
    if (
        type(value) in (list, tuple)
        and len(lists) == len(fields)
        and (len(fields) == 1 or any(len(kind) > 1 for kind in kinds) or not _differ(kinds))
    ):
        return None  # as well a list of samples
    sizes = {int(tensor.size(0)) if tensor.dim() else 0 for _, tensor in tensor_leaves(value)}
    # a first dimension that all share is the samples', whatever the lists are
    return size if len(sizes) > 1 else None


def _kind(item: Any) -> tuple[Any, ...]:
    if isinstance(item, torch.Tensor):
        return torch.Tensor, item.dim()
    return type(item), tuple(item) if isinstance(item, Mapping) else None


def _differ(kinds: list[set[tuple[Any, ...]]]) -> bool:
    return len(set.union(*kinds)) > 1


def is_list_of_samples(value: Any) -> bool:
    """A batch that was never stacked: a list of dicts, tuples or tensors that are alike but share
    no first dimension."""
    if (
        type(value) not in (list, tuple)
        or len(value) < 2
        or len({type(item) for item in value}) > 1
        or size_of_fields(value)
    ):
        return False
    first = value[0]
    if isinstance(first, Mapping):
        alike = all(item.keys() == first.keys() for item in value)
    elif isinstance(first, torch.Tensor):
        # a tuple holds fields: images, labels put one behind the other, lengths
        alike = type(value) is list and len({(item.dim(), item.dtype) for item in value}) == 1
    else:
        alike = type(first) in (list, tuple) and all(len(item) == len(first) for item in value)
    sizes = {int(tensor.size(0)) for _, tensor in tensor_leaves(value) if tensor.dim()}
    return alike and len(sizes) > 1


def batch_size(value: Any) -> int | None:
    """The length of the first dimension that most tensors of the batch share, or of a list of
    samples or of fields; None without any, or where no length prevails (a graph's nodes and edges).
    """
    if is_list_of_samples(value):
        return len(value)
    if (size := size_of_fields(value)) is not None:
        return size
    counts: dict[int, int] = {}
    for _, tensor in tensor_leaves(value):
        if tensor.dim() >= 1:
            size = int(tensor.size(0))  # a nested tensor has no shape
            counts[size] = counts.get(size, 0) + 1
    best = sorted(counts, key=lambda size: -counts[size])[:2]
    return None if not best or (len(best) == 2 and counts[best[0]] == counts[best[1]]) else best[0]
