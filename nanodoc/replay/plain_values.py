"""A batch, a state_dict or a configuration as plain values that `torch.load(weights_only=True)`
reads, and back in the containers it came in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

_DROPPED = "__nanodoc_dropped__"
_FIELDS = "__nanodoc_fields__"
_ARRAY = "__nanodoc_array__"
_KINDS = (  # of NumPy
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


def plain(value: Any, *, arrays: bool = False) -> Any:
    """`value` as tensors, numbers, texts, lists, tuples and dicts; named fields keep their names,
    the rest is marked. With `arrays` NumPy's are known from tensors afterwards."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return (
            value
            if type(value) in (type(None), bool, int, float, str, bytes)
            else _base_value(value)
        )
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        return tensor.as_subclass(torch.Tensor) if type(tensor) is not torch.Tensor else tensor

    def inner(item: Any) -> Any:
        return plain(item, arrays=arrays)

    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {
            _FIELDS: {name: inner(item) for name, item in zip(value._fields, value, strict=True)}
        }
    if isinstance(value, tuple):
        return tuple(inner(item) for item in value)
    if isinstance(value, (list, set, frozenset)):
        return [inner(item) for item in value]
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, (str, int, float, bool)) else str(key): inner(item)
            for key, item in value.items()
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_FIELDS: {f.name: inner(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        try:
            # in one piece and in this machine's order of bytes, as torch asks for
            kind = value.dtype.newbyteorder("=")
            whole = value.astype("int64" if kind.kind == "u" else kind).copy()
            tensor = torch.as_tensor(whole)
            return {_ARRAY: tensor, "dtype": str(kind)} if arrays else tensor
        except (TypeError, ValueError, RuntimeError):
            pass
    return {_DROPPED: type(value).__name__}


def holds_dropped(saved: Any) -> bool:
    """Something in it was of a class that plain values cannot stand for."""
    if isinstance(saved, Mapping):
        return _DROPPED in saved or any(holds_dropped(item) for item in saved.values())
    return isinstance(saved, (list, tuple)) and any(holds_dropped(item) for item in saved)


def like(saved: Any, template: Any) -> Any:
    """A saved batch in the containers of a fresh one: dataclasses and named tuples get their types
    back."""
    if isinstance(saved, Mapping) and _DROPPED in saved:
        return template
    if isinstance(saved, Mapping) and _ARRAY in saved:
        return _array(saved)
    if isinstance(saved, Mapping) and _FIELDS in saved:
        values = saved[_FIELDS]
        if not isinstance(values, dict):
            raise ValueError("fields without names")
        if hasattr(template, "_fields"):
            return type(template)(
                **{name: like(values[name], getattr(template, name)) for name in template._fields}
            )
        if dataclasses.is_dataclass(template) and not isinstance(template, type):
            return dataclasses.replace(
                template,
                **{name: like(item, getattr(template, name)) for name, item in values.items()},
            )
        return tuple(values.values())
    if isinstance(saved, Mapping):
        of = template if isinstance(template, Mapping) else {}
        result = {key: like(item, of.get(key)) for key, item in saved.items()}
        if (
            isinstance(template, Mapping)
            and type(template) is not dict
            and hasattr(template, "update")
        ):
            rebuilt: Any = type(template)()
            rebuilt.update(result)
            return rebuilt
        return result
    if isinstance(saved, (list, tuple)):
        of_items = (
            list(template)
            if isinstance(template, (list, tuple)) and len(template) == len(saved)
            else [None] * len(saved)
        )
        return type(saved)(like(item, part) for item, part in zip(saved, of_items, strict=True))
    return saved


def _array(saved: Mapping[str, Any]) -> Any:
    tensor, kind = saved[_ARRAY], str(saved.get("dtype"))
    if not isinstance(tensor, torch.Tensor) or kind not in _KINDS:
        raise ValueError("an array of unknown kind")
    array = tensor.numpy().astype(kind)
    return array if array.ndim else array[()]


def _base_value(value: Any) -> Any:
    """A subclass of a plain type (an enum, a numpy scalar) as the plain type."""
    for kind in (bool, int, float, str, bytes):
        if isinstance(value, kind):
            return kind(value)  # type: ignore[arg-type]  # each kind converts its own subclasses
    return None
