"""Samples of a batch that the loss does not read: the step computes something of each sample, takes
a part of it by position, and nothing else reads the rest.

The step is run again, and each call that gives samples to the first weights is watched: which of
the rows that it is given have a gradient. Where these are the same rows in several steps, whatever
the samples, it is their place that decides. A loss that is zero for some samples leaves out others
in each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.inspection import UnreadRowsFacts
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import DisableTorchFunction, current_autograd_node
from nanodoc.tensors.plain import first_data, is_plain
from nanodoc.trace.calls import plain_name
from nanodoc.vocabulary.calls import CASTS, COPIES, DROPOUTS, LAYERS, TAKES

_FEWEST_ROWS = 4
_TRAINING = 5
"""The place of that argument of `torch.batch_norm`; `torch.nn.functional`'s has it by name."""
Key = tuple[str, int]
"""The name of a call, and how many of that name came before it."""
Numbers = tuple[float, ...]
Flags = tuple[bool, ...]


def parts_taken(calls: StepCalls) -> Iterator[CallFacts]:
    """Calls that take half of the rows or fewer of what has a gradient, by position; nothing else
    reads that, nor the data behind it."""
    reaching = calls.reaching_the_loss()
    readers = Counter(
        a.made_by for one in calls.calls if one.index in reaching for a in one.arguments
    )
    for one in calls.calls:
        if one.index in reaching and _takes_few(one) and one.arguments[0].requires_grad:
            alone = readers[one.arguments[0].made_by] == 1
            if alone and not _read_elsewhere(calls, one, reaching):
                yield one


def _takes_few(one: CallFacts) -> bool:
    """By a slice or a number: indices and masks are tensors, chosen sample by sample."""
    if one.name not in TAKES or len(one.arguments) != 1:
        return False
    given = one.arguments[0].shape
    if given[:1] < (_FEWEST_ROWS,):
        return False
    same_rank = len(one.shape) == len(given)
    return 2 * one.shape[0] <= given[0] if same_rank else one.shape == given[1:]


def _read_elsewhere(calls: StepCalls, taken: CallFacts, reaching: Container[int]) -> bool:
    """Some call takes other rows of the data that the first layers are given, for other samples to
    learn from: the features of neighbours."""
    behind = [calls.calls[i] for i in calls.behind(taken)[0]]
    if any(map(_gathers, behind)):
        return True
    first = [one for one in behind if _is_first(one)]
    known = {_identity(a) for one in first for a in one.arguments if not a.requires_grad}
    return any(
        _identity(argument) in known
        for one in calls.calls
        if one.index in reaching and _mixes_rows(one)
        for argument in one.arguments
    )


def _gathers(one: CallFacts) -> bool:
    """A product with a square matrix of as many rows as there are samples, which is given: the
    edges of a graph."""
    if one.name not in ("mm", "matmul", "sparse_mm", "spmm", "bmm") or len(one.arguments) < 2:
        return False
    matrix, rows = one.arguments[:2]
    square = len(matrix.shape) >= 2 and matrix.shape[-1] == matrix.shape[-2]
    return square and not matrix.requires_grad and matrix.shape[-1:] == rows.shape[-2:-1]


def _mixes_rows(one: CallFacts) -> bool:
    by_index = one.name in TAKES and len(one.arguments) > 1
    return by_index or one.name in ("flip", "roll", "index_add", "scatter_add", "scatter_reduce")


def _identity(argument: ArgumentFacts) -> tuple[Any, ...]:
    """The same for one tensor, and for those of unknown origin that may be one."""
    unknown = argument.made_by is None and argument.leaf is None
    shape = (argument.shape, argument.dtype) if unknown else ()
    return argument.made_by, argument.leaf, *shape


class ReadRowsLook(TorchFunctionMode):
    """A context manager around a step that is run again; `read` then tells, for each layer that is
    given a part of the data, which rows of that have a gradient. Batch norm takes its running
    statistics meanwhile, since those of a batch make each sample depend on all, and nothing is
    dropped."""

    def __init__(self, calls: StepCalls, taken: CallFacts) -> None:
        super().__init__()
        self.taken = taken
        behind, _ = calls.behind(taken)
        self._first = {calls.among_its_name(one) for one in calls.calls if _is_first(one)}
        self._behind = {calls.among_its_name(calls.calls[index]) for index in behind}
        self._seen: Counter[str] = Counter()
        self._given: dict[Key, Numbers] = {}
        self._flags: dict[Key, torch.Tensor] = {}
        source = calls.maker(taken.arguments[0])
        self._source = calls.among_its_name(source) if source is not None else None
        self._copies: list[Any] = []
        """Of what the part is taken from."""
        self.leaves_torch = False
        """It is read as numbers, too: what they are for is not known."""
        self.normalised = any(calls.calls[index].name == "batch_norm" for index in behind)
        """Samples take part in the statistics of others."""

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._copies.clear()

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, plain_name(func)
        if current_autograd_node() is not None:
            return call(func, *args, **kwargs)
        if name in DROPOUTS:  # it would make samples that stay the same differ from step to step
            self._seen[name] += 1
            return args[0] if args else kwargs["input"]
        if name == "batch_norm":
            args, kwargs = _with_running_statistics(args, kwargs)
        key, self._seen[name] = (name, self._seen[name]), self._seen[name] + 1
        at = first_data(args) if key in self._first else None
        if at is None or not is_plain(args[at]) or args[at].is_complex():
            out = call(func, *args, **kwargs)
            self._follow(key, args, out)
            return out
        data = args[at]
        if data.is_floating_point() and torch.is_grad_enabled():
            # a recurrent layer takes gradients from row to row where rows are steps in time
            data = data.detach().requires_grad_()
            args = (*args[:at], data, *args[at + 1 :])
        out = call(func, *args, **kwargs)
        self._follow(key, args, out)
        looked_up = name == "embedding" and isinstance(out, torch.Tensor)
        self._watch(key, data, out if looked_up else data)
        return out

    def _follow(self, key: Key, args: Any, out: Any) -> None:
        """Notes what the part is taken from, its copies, and whether they are read as numbers."""
        copied = bool(args) and any(args[0] is one for one in self._copies)
        if key == self._source or (copied and key[0] in (*COPIES, *CASTS, "detach", "cpu", "get")):
            self._copies.append(out)
        self.leaves_torch |= copied and key[0] in ("tolist", "numpy", "array")

    def _watch(self, key: Key, data: torch.Tensor, hooked: torch.Tensor) -> None:
        if hooked.requires_grad and len(hooked) == len(data) >= _FEWEST_ROWS:
            with torch.no_grad(), DisableTorchFunction():
                values = data.cpu().double().reshape(len(data), -1)
                self._given[key] = tuple(values.cumsum(1).sum(1).tolist())
                self._flags[key] = torch.zeros(len(data), dtype=torch.bool)
            hooked.register_hook(lambda gradient: self._note(key, gradient))

    def _note(self, key: Key, gradient: torch.Tensor) -> None:
        with torch.no_grad(), DisableTorchFunction():
            self._flags[key] |= gradient.ne(0).flatten(1).any(1).cpu()

    @property
    def read(self) -> dict[Key, tuple[Numbers, Flags]]:
        """(one number of each row, whether the loss reads the row) of what the layers behind the
        part that is taken were given; also read where another layer was given the same rows."""
        told = {}
        for key in self._given.keys() & self._behind:
            given = self._given[key]
            flags = [self._flags[other] for other, rows in self._given.items() if rows == given]
            told[key] = given, tuple(torch.stack(flags).any(0).tolist())
        return told


def _is_first(one: CallFacts) -> bool:
    """A layer that is given nothing with a gradient but its weights."""
    learnt = any(a.requires_grad and a.made_by is not None for a in one.arguments)
    return one.name in LAYERS and one.requires_grad and not learnt


def _with_running_statistics(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of batch_norm in eval mode, where it has running statistics."""
    if len(args) < 2 or args[1] is None:
        return args, kwargs
    if "training" in kwargs:
        return args, {**kwargs, "training": False}
    if len(args) <= _TRAINING:
        return args, kwargs
    return (*args[:_TRAINING], False, *args[_TRAINING + 1 :]), kwargs


def unread_rows(looks: Sequence[ReadRowsLook]) -> UnreadRowsFacts | None:
    """Of looks at several steps: of all that is given to the first layers, and differs from step to
    step, the same rows are read in each, and half of them or fewer."""
    if any(look.leaves_torch for look in looks):
        return None
    seen = [read for look in looks if (read := look.read)]  # a step may not run again
    places: set[frozenset[int]] = set()
    sizes, steps = [0], [0]
    for key in set().union(*seen):
        if any(key not in one for one in seen):
            return None
        given = {one[key][0] for one in seen}
        if len(given) == 1 or any(2 * len(set(rows)) <= len(rows) for rows in given):
            continue  # positions, or tokens to begin with: these are not told apart by samples
        places |= {frozenset(i for i, flag in enumerate(one[key][1]) if flag) for one in seen}
        sizes += map(len, given)
        steps.append(len(given))
    patterns = [one for one in places if one]
    if len(patterns) != 1 or 2 * len(patterns[0]) > min(sizes[1:]):
        return None
    count = len(patterns[0])
    if count > 1 and any(look.normalised for look in looks):
        return None  # to normalise by more samples than are learnt from may be meant
    return UnreadRowsFacts(taken=looks[0].taken, rows=max(sizes), read=count, steps=max(steps))
