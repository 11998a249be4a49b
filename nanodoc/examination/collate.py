"""Samples that cannot be put together: which field differs, in which samples, and whether the step
would run with it padded."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Mapping
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from nanodoc.errors import UsageError, UserCodeError
from nanodoc.facts.crash import FieldFacts, RaggedFacts
from nanodoc.facts.failure import Failure
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.torch_private import MapFetcher
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper
from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.spans import resolve

_MOST_SAMPLES = 512


def ragged_facts(
    runner: StepRunner, keeper: StateKeeper, build: BuildFacts, indices: list[int], failure: Failure
) -> RaggedFacts | None:
    """Draws the samples again, one by one. None where they fit together after all."""
    loader = runner.recipe.data
    if not isinstance(loader, DataLoader) or len(indices) > _MOST_SAMPLES:
        return None
    with state_preserved(runner, keeper):
        samples = [loader.dataset[index] for index in indices]
        own = loader.collate_fn is not default_collate
        facts = _compared(samples, indices, loader.dataset, own=own and bool(failure.frames))
        if facts is None:
            return None
        facts = replace(facts, loader_at=build.loader_made_at(loader))
        ragged = [field for field in facts.fields if field.ragged]
        if own or not all(_can_be_padded(field) for field in ragged):
            return facts
        return _tried(runner, facts, samples)


def ragged_as_drawn(error: BaseException, failure: Failure) -> RaggedFacts | None:
    """The samples that the loader held when it could not put them together: its frame is in the
    traceback, where it has no workers."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        fetcher, held = frame.f_locals.get("self"), frame.f_locals.get("data")
        if not isinstance(fetcher, MapFetcher) or not isinstance(held, list):
            continue
        indices = [int(index) for index in frame.f_locals["possibly_batched_index"]]
        own = fetcher.collate_fn is not default_collate and bool(failure.frames)
        if held and len(held) == len(indices):
            return _compared(held, indices, fetcher.dataset, own=own)
    return None


def _compared(
    samples: list[Any], indices: list[int], dataset: Any, *, own: bool
) -> RaggedFacts | None:
    fields = _fields(samples)
    if not any(field.ragged for field in fields):
        return None
    return RaggedFacts(
        indices=tuple(indices),
        fields=tuple(fields),
        containers=_kind(samples[0]),
        own_collate=own,
        loader_at=None,
        made_at=_getitem(dataset),
    )


def _tried(runner: StepRunner, facts: RaggedFacts, samples: list[Any]) -> RaggedFacts:
    batch = default_collate(_padded(samples))
    try:
        result = run_step(runner, [batch])
        told = [result.returned] if _is_scalar(result.returned) else result.losses
        value = float(told[-1]) if told else 0.0
    except (UserCodeError, UsageError) as error:
        cause = error.cause if isinstance(error, UserCodeError) else error
        return replace(
            facts,
            padded=f"{type(cause).__name__}: "
            f"{str(cause).strip().splitlines()[0][:120] if str(cause).strip() else ''}",
        )
    return replace(facts, padded="runs", padded_loss=value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _fields(samples: list[Any]) -> list[FieldFacts]:
    """Every field of the samples; a field that some samples lack is one whose type differs."""
    leaves = [dict(_leaves(sample)) for sample in samples]
    paths = list(dict.fromkeys(path for leaf in leaves for path in leaf))
    return [
        FieldFacts(path=path, sizes=tuple(leaf.get(path, "missing") for leaf in leaves))
        for path in paths
    ]


def _leaves(sample: Any, path: str = "") -> list[tuple[str, tuple[int, ...] | str]]:
    if isinstance(sample, torch.Tensor):
        return [(path, tuple(sample.shape))]
    if hasattr(sample, "shape") and hasattr(sample, "dtype"):  # a NumPy array
        return [(path, tuple(sample.shape))]
    if isinstance(sample, Mapping):
        return [
            leaf for key, value in sample.items() for leaf in _leaves(value, f"{path}[{key!r}]")
        ]
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return [
            leaf
            for name in sample._fields
            for leaf in _leaves(getattr(sample, name), f"{path}.{name}")
        ]
    if isinstance(sample, (list, tuple)):
        if sample and all(isinstance(item, (int, float)) for item in sample):
            return [(path, (len(sample),))]  # collated element by element: its length must be one
        return [leaf for i, value in enumerate(sample) for leaf in _leaves(value, f"{path}[{i}]")]
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return [
            leaf
            for field in dataclasses.fields(sample)
            for leaf in _leaves(getattr(sample, field.name), f"{path}.{field.name}")
        ]
    return [(path, type(sample).__name__)]


def _can_be_padded(field: FieldFacts) -> bool:
    """Arrays with equally many dimensions that differ in length: zeros behind the shorter ones make
    sense of a sequence, not of images with another number of channels."""
    sizes = [size for size in field.sizes if isinstance(size, tuple)]
    return (
        len(sizes) == len(field.sizes)
        and len({len(size) for size in sizes}) == 1
        and len(sizes[0]) >= 1
        and not field.images
    )


def _padded(samples: list[Any]) -> list[Any]:
    """The samples with every ragged array filled with zeros behind, up to the largest."""
    first = samples[0]
    if all(
        isinstance(sample, torch.Tensor) or (hasattr(sample, "shape") and hasattr(sample, "dtype"))
        for sample in samples
    ):
        tensors = [torch.as_tensor(sample) for sample in samples]
        if len({tuple(t.shape) for t in tensors}) == 1:
            return tensors
        shape = [max(sizes) for sizes in zip(*(t.shape for t in tensors), strict=True)]
        out = tensors[0].new_zeros(len(tensors), *shape)
        for row, tensor in zip(out, tensors, strict=True):
            row[tuple(slice(size) for size in tensor.shape)] = tensor
        return list(out)
    if isinstance(first, Mapping):
        columns = {key: _padded([sample[key] for sample in samples]) for key in first}
        return [{key: columns[key][i] for key in first} for i in range(len(samples))]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        rows = zip(*(_padded(list(column)) for column in zip(*samples, strict=True)), strict=True)
        return [type(first)(*row) for row in rows]
    if (
        isinstance(first, (list, tuple))
        and first
        and all(isinstance(x, (int, float)) for sample in samples for x in sample)
    ):
        return _padded([torch.tensor(sample) for sample in samples])
    if isinstance(first, (list, tuple)):
        return [
            type(first)(row)
            for row in zip(
                *(_padded(list(column)) for column in zip(*samples, strict=True)), strict=True
            )
        ]
    return samples


def _kind(sample: Any) -> str:
    if isinstance(sample, torch.Tensor):
        return "tensor"
    if isinstance(sample, Mapping):
        return "dict"
    return "tuple" if isinstance(sample, (list, tuple)) else type(sample).__name__


def _getitem(dataset: Any) -> SourceSpan | None:
    """The last line of the data set's `__getitem__`: what it returns."""
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    if not isinstance(code, CodeType) or frame_kind(code.co_filename) != USER:
        return None
    lines = [i for i, position in enumerate(code.co_positions()) if position[0] is not None]
    return resolve(code, lines[-1] * 2) if lines else None
