"""Where the bad values of a batch were made: the sample is drawn again, and if it lay there bad
already, what built the data runs again; each time the user's code is followed line by line."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.data import BatchSampler, IterableDataset, default_collate

from nanodoc.errors import UsageError, UserCodeError, is_users
from nanodoc.examination.badness import at_least, not_finite
from nanodoc.examination.sample import as_tensor, seed_all
from nanodoc.facts.ops import LeafRoot, Making
from nanodoc.facts.source import SourceSpan
from nanodoc.replay.sandbox import state_preserved, warnings_unsaid
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper
from nanodoc.tensors.nested import keys_of, tensor_leaves
from nanodoc.trace.first_lines import FirstLine, FirstLines, OutOfTime

_DRAWS = 8  # of one sample
_MOST_HOLDERS = 200


@dataclass(frozen=True, slots=True)
class Source:
    """Where a run's batches come from: the data set of a loader, or `data`, which yields them."""

    data: Any
    dataset: Any = None
    collate: Callable[[list[Any]], Any] | None = None
    step: Callable[[], object] | None = None
    """Runs a step, where that is not done yet when the data are there."""
    workers: int = 0
    """How many processes draw the samples; 0 where the training's own does."""
    worker_init: Callable[[int], object] | None = None
    persistent: bool = False
    """The workers go on from epoch to epoch."""
    sampler: Any = None
    """Draws the numbers of single samples."""
    batch: int | None = None
    """How many samples are drawn for a batch; None where that is not known."""
    validated_on: tuple[Any, ...] = ()
    """The data sets that were drawn from with gradients off, since the training began."""

    @classmethod
    def of_loader(cls, loader: Any, validated_on: Sequence[Any] = ()) -> Source:
        """Of a DataLoader."""
        dataset = getattr(loader, "dataset", None)
        return cls(
            loader,
            None if isinstance(dataset, IterableDataset) else dataset,
            getattr(loader, "collate_fn", None),
            workers=getattr(loader, "num_workers", 0),
            worker_init=getattr(loader, "worker_init_fn", None),
            persistent=getattr(loader, "persistent_workers", False),
            sampler=_of_samples(getattr(loader, "_index_sampler", None)),
            batch=getattr(getattr(loader, "_index_sampler", None), "batch_size", None),
            validated_on=tuple(validated_on),
        )

    @classmethod
    def of_iterator(cls, iterator: Any) -> Source:
        """Of what a DataLoader's `iter` gives; nothing for anything else."""
        dataset = getattr(iterator, "_dataset", None)
        drawn = None if isinstance(dataset, IterableDataset) else dataset
        return cls((), drawn, getattr(iterator, "_collate_fn", None))


def _of_samples(sampler: Any) -> Any:
    """What draws the numbers of single samples; None for a sampler of the user's own, which may
    draw classes, or groups."""
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    return inner if type(inner).__module__.startswith("torch.") else None


class MakingSearch:
    """Looks for the making of the bad values of one step's batches, when the run is over.

    `build` makes the data anew as the training did; None where that can't be done. `seconds` is
    how long one of its searches may take.
    """

    def __init__(
        self,
        runner: StepRunner,
        keeper: StateKeeper,
        source: Source,
        build: Callable[[], contextlib.AbstractContextManager[Source | None]] | None,
        seconds: float,
    ) -> None:
        self._runner = runner
        self._keeper = keeper
        self._source = source
        self._build = build
        self._seconds = seconds

    def of(self, leaf: LeafRoot, step: int) -> Making | None:
        """The line that made the values of a leaf of the batch that are not finite; None where that
        did not show."""
        if leaf.kind == "unknown":
            return self._outside(leaf)
        if leaf.kind != "batch":
            return None
        index = leaf.dataset_indices[0] if leaf.dataset_indices else None
        with state_preserved(self._runner, self._keeper), warnings_unsaid():
            seeds: Sequence[int] = range(_DRAWS)
            if index is None and self._source.dataset is not None:
                bad = _bad_sample(self._source.dataset, leaf.name, self._seconds / 2)
                if bad is None:
                    return None
                index, seeds = bad[0], bad[1:]
            found = self._drawn_again(leaf.name, index, seeds)
            if found is None and self._build is not None:
                found = self._built_again(leaf.name, index, step)
        return found

    def of_size(
        self, place: SourceSpan, least: float
    ) -> tuple[FirstLine, SourceSpan | None] | None:
        """The line where what a line of the step reads first had values of `least` or more. Where
        that line has multiplied them again and again: the one that made the factor, and it."""
        if self._build is None:
            return None

        with (
            state_preserved(self._runner, self._keeper),
            warnings_unsaid(),
            _following(self._seconds, partial(at_least, least)) as lines,
            self._build() as source,
        ):
            if source is not None and source.step is not None:
                source.step()
            read = lines.read_at(place)
            if read is None or read[0].line is None:
                return None
            factor = lines.factor_of(read[0])
            return factor or read[0], read[0].line if factor is not None else None
        return None

    def of_part(self, index: int, part: Callable[[Any], torch.Tensor | None]) -> SourceSpan | None:
        """The line where a part of a sample first had the values that it has, or where what the
        data set holds of all samples had them."""
        wanted: list[torch.Tensor] = []

        def is_it(value: Any) -> int:
            held = as_tensor(value)
            if held is None or held.shape != wanted[0].shape or held.dtype != wanted[0].dtype:
                return 0
            return int(torch.equal(held, wanted[0]))

        def found(source: Source | None, *, held: bool = False) -> SourceSpan | None:
            if source is None or source.dataset is None:
                return None
            value = part(source.dataset[index])
            line = lines.of(_holder(source.dataset, index, value) if held else value)
            return line.line if line is not None else None

        with state_preserved(self._runner, self._keeper), warnings_unsaid():
            whole = None
            with contextlib.suppress(Exception):  # the user's data set, asked once more
                value = part(self._source.dataset[index])
                wanted += [] if value is None else [value]
                whole = as_tensor(_holder(self._source.dataset, index, value))
            if not wanted:
                return None
            with _following(self._seconds, is_it) as lines:
                if (line := found(self._source)) is not None:
                    return line
            if self._build is not None:
                wanted = [wanted[0] if whole is None else whole]
                with _following(self._seconds, is_it) as lines, self._build() as source:
                    return found(source, held=whole is not None)
        return None

    def _outside(self, leaf: LeafRoot) -> Making | None:
        """Of a tensor that the step found made: what the line that reads it first reads."""
        place = leaf.consumer.site if leaf.consumer is not None else None
        if self._build is None or place is None:
            return None
        with (
            state_preserved(self._runner, self._keeper),
            warnings_unsaid(),
            _following(self._seconds) as lines,
            self._build() as source,
        ):
            if source is not None and source.step is not None:
                source.step()
            read = lines.read_at(place)
            made = _making(read[0], "build") if read is not None else None
            if made is not None and read is not None:
                return replace(made, name=read[1])
            # a trainer draws its batches out of sight
            return self._of_some_sample(lines, source) if source is not None else None
        return None

    def _of_some_sample(self, lines: FirstLines, source: Source) -> Making | None:
        """Of the first sample of a data set that holds such a value."""
        if source.dataset is None:
            return None
        bad = _bad_sample(source.dataset, "", self._seconds / 2)
        if bad is None:
            return None
        seed_all(bad[1])
        line = _of_sample(lines, source, bad[0], "") or _held(lines, source.dataset, bad[0], "")
        return _making(line, "build")

    def _drawn_again(self, path: str, index: int | None, seeds: Sequence[int]) -> Making | None:
        if self._source.dataset is None or index is None:
            return None
        for seed in seeds:
            with _following(self._seconds) as lines:
                seed_all(seed)
                found = _making(_of_sample(lines, self._source, index, path), "sample")
                if found is not None or lines.of_any():
                    return found
        return None

    def _built_again(self, path: str, index: int | None, step: int) -> Making | None:
        assert self._build is not None
        with _following(self._seconds) as lines, self._build() as source:
            if source is None:
                return None
            if source.dataset is not None and index is not None:
                line = _of_sample(lines, source, index, path) or _held(
                    lines, source.dataset, index, path
                )
            else:
                line = _of_batch(lines, source.data, step, path)
            return _making(line, "build")
        return None


def _bad_sample(dataset: Any, path: str, seconds: float) -> tuple[int, int] | None:
    """The first sample that holds such a value, and the seed that it was drawn with, where nothing
    tells which ones the batch was made of."""
    until = time.monotonic() + seconds
    with contextlib.suppress(Exception):  # the user's data set, asked at another time than theirs
        for seed, index in itertools.product(range(_DRAWS), range(len(dataset))):
            seed_all(seed)
            sample = dataset[index]
            value = _at(sample, path)
            if _any_bad(sample if value is None else value):
                return index, seed
            if time.monotonic() > until:
                return None
    return None


@contextlib.contextmanager
def _following(seconds: float, badness: Callable[[Any], int] | None = None) -> Iterator[FirstLines]:
    """The user's code is followed. Whatever it raises, asked at another time than it expects, ends
    the search. `badness` is by default the number of elements that are not finite."""
    lines = FirstLines(badness or not_finite, seconds)
    try:
        with lines:
            yield lines
    except (OutOfTime, UserCodeError, UsageError, SystemExit):
        pass
    except Exception as error:
        if not is_users(error):
            raise


def _making(line: FirstLine | None, stage: Literal["sample", "build"]) -> Making | None:
    if line is None or line.line is None:
        return None
    return Making(line=line.line, name=line.name, stage=stage)


def _of_sample(lines: FirstLines, source: Source, index: int, path: str) -> FirstLine | None:
    sample = source.dataset[index]
    if source.collate is not None and source.collate is not default_collate:
        batch = source.collate([sample])
        value = _at(batch, path)
        if not_finite(value) and (line := lines.of(value)) is not None:
            return line
    value = _at(sample, path)
    if value is None:  # a script's own names for what it takes out of the batch
        value = sample
    if not _any_bad(value):
        return None
    return lines.of(value) or lines.of(sample)


def _held(lines: FirstLines, dataset: Any, index: int, path: str) -> FirstLine | None:
    """The line of what the data set holds, where its own code made no copy: the tensors of a
    TensorDataset."""
    drawn = _at(dataset[index], path)
    found: list[FirstLine] = []
    for held in _holders(dataset):
        line = lines.of(held)
        if line is None:
            continue
        found.append(line)
        with contextlib.suppress(Exception):  # any object's own indexing
            row = torch.as_tensor(held[index])
            if drawn is not None and _same(row, torch.as_tensor(drawn)):
                return line
    return found[0] if len(set(found)) == 1 else None


def _holder(dataset: Any, index: int, part: torch.Tensor | None) -> Any:
    """What a data set holds of all samples, such as a tensor of a TensorDataset, of which the part
    is the row of this sample; None where it does not show."""
    for held in _holders(dataset):
        rows = as_tensor(held)
        if rows is None or part is None or rows.shape[1:] != part.shape or index >= len(rows):
            continue
        if rows.dim() and torch.equal(rows[index].to(part.dtype), part):
            return held
    return None


def _holders(dataset: Any) -> Iterator[Any]:
    """What a data set holds, and the data sets in it."""
    seen: set[int] = set()
    waiting = [dataset]
    while waiting and len(seen) < _MOST_HOLDERS:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, (list, tuple)):
            waiting += value[:_MOST_HOLDERS]
        elif isinstance(value, dict):
            waiting += list(value.values())[:_MOST_HOLDERS]
        elif hasattr(value, "__getitem__") and hasattr(value, "__dict__"):
            waiting += list(vars(value).values())


def _of_batch(lines: FirstLines, data: Any, step: int, path: str) -> FirstLine | None:
    for number, batch in enumerate(data):
        if number == step:
            value = dict(tensor_leaves(batch, "batch")).get(path)
            if value is not None and not_finite(value):
                return lines.of(value) or lines.of(batch) or lines.of(data)
            return None
    return None


def _at(value: Any, path: str) -> Any:
    """What lies at the path of a batch, as `batch['x'][0]`, in a sample; None where there is
    nothing."""
    for key in keys_of(path):
        try:
            value = getattr(value, key) if f".{key}" in path else value[key]  # type: ignore[arg-type]  # a name
        except (TypeError, KeyError, IndexError, AttributeError):
            return None
    return value


def _any_bad(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(_any_bad(item) for item in value)
    return not_finite(value) > 0


def _same(first: torch.Tensor, other: torch.Tensor) -> bool:
    return first.shape == other.shape and torch.equal(
        first.double().nan_to_num(), other.double().nan_to_num()
    )


def with_makings(
    search: MakingSearch, leaves: Sequence[LeafRoot], step: int
) -> tuple[LeafRoot, ...]:
    """The leaves with where their values were made."""
    return tuple(replace(leaf, making=search.of(leaf, step)) for leaf in leaves)
