"""Are the rows that a step combines those of the same samples?

The step is run once more, and each tensor's rows are followed: which rows of which store (a
rollout, arrays of data) or of which part of the batch they are. Taking rows by an index or a slice
says so; `roll`, `flip` and a permutation move them; every other call passes on what it was given.
Where two values are combined row by row, or compared by a loss, both should hold rows of the same
samples.

Values that hold rows of several samples on purpose are left alone: mixed samples whose targets are
moved in the same way, pairs of rows of one part, negatives that were also taken in the usual order.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import SequentialSampler

from nanodoc.facts.calls import StepCalls
from nanodoc.facts.inspection import RowsApart
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import DisableTorchFunction, current_autograd_node
from nanodoc.recipe.data_loader import loader_of
from nanodoc.recipe.recipe import Recipe
from nanodoc.trace.calls import plain_name
from nanodoc.trace.ops import outputs_of, tensors_in
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.vocabulary.calls import BY_ROW, FROM_ARRAYS, SUPERVISED, TO_COLUMNS, TURNING

look_through(__file__)

_FEWEST = 8  # rows
_MOST_ROWS = 1_000_000  # of a store
_MOST_TENSORS = 100_000  # that are followed
_COUNTED = -1  # the number of a part that holds the rows' numbers
_PARTS = 3
"""Parts that are taken in the same order, beside the one that is taken in another."""
_SAME = 0.5
"""Share of the rows that may be the same by chance, as where an index is drawn with repetition."""
_LOOKED_AT = 256  # rows of a part, for their order
_NO_ORDER = 0.8
"""Times the mean distance of two rows: that of neighbours in a part whose rows have no order."""
_OF_A_SHIFT = 2  # differences between the numbers of rows, one of them behind the end
_REGULAR = 3
"""Different distances between neighbours that a slice or a shift has at most."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one part of the data."""

    part: int
    """A store or a part of the batch, by a number of its own."""
    stored: int
    """How many rows it has."""
    order: bytes
    """The numbers of the rows, in their order."""
    computed: bool = False
    """A layer has been given them: they are what it gave for these rows."""


@dataclass(frozen=True, slots=True)
class _Taking:
    """The first call that took rows in some order."""

    name: str
    number: int
    """How many calls of that name came before."""
    moves: bool
    """It took all rows of what it was given, in another order."""
    place: Place | None


@dataclass(slots=True)
class _Meeting:
    """A call that combines two values row by row."""

    name: str
    sides: tuple[frozenset[_Rows], frozenset[_Rows]]
    place: Place | None
    out: torch.Tensor | None
    rows: int
    attracts: bool | None = None
    """The step makes what it gives smaller."""


def takes_rows(calls: StepCalls) -> bool:
    """The step takes some rows of a tensor, or moves them."""
    return any(
        one.name in ("roll", "flip", "flipud", "index_select")
        or (one.name == "getitem" and not one.view)
        for one in calls.calls
    )


def draws_at_random(recipe: Recipe) -> bool:
    """A loader of the training gives its samples in no order of theirs."""
    data = getattr(recipe.train_step, "loader", None) or recipe.data
    sampler = getattr(loader_of(data), "sampler", None)
    return sampler is not None and not isinstance(sampler, SequentialSampler)


class RowsLook(TorchFunctionMode):
    """A context manager around a step that is run again, with `on_loss` told of each loss. `found`
    then says where rows of different samples meet. `shuffled`: the loader draws in a random
    order."""

    def __init__(self, parameters: Iterable[torch.Tensor], *, shuffled: bool) -> None:
        super().__init__()
        self._own = {id(parameter) for parameter in parameters}
        self._shuffled = shuffled
        self._rows: dict[int, tuple[weakref.ref[torch.Tensor], frozenset[_Rows]]] = {}
        self._outside: dict[int, tuple[torch.Tensor, frozenset[_Rows]]] = {}
        self._numbers: dict[bytes, torch.Tensor] = {}
        self._takings: dict[tuple[int, bytes], _Taking] = {}
        """By the part and the order."""
        self._parts: dict[bytes, set[int]] = {}
        """The parts that met others in each order."""
        self._taken_in: dict[bytes, set[int]] = {}
        """The parts that were taken in each order."""
        self._at_random: set[bytes] = set()
        self._in_no_order: set[int] = set()
        self._meetings: list[_Meeting] = []
        self._counts: Counter[str] = Counter()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._rows, self._outside = {}, {}
        for met in self._meetings:
            met.out = None

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = call(func, *args, **kwargs)
        if current_autograd_node() is None and len(self._rows) < _MOST_TENSORS:
            name = plain_name(func)
            with DisableTorchFunction(), torch.no_grad():
                self._follow(name, self._counts[name], args, kwargs, out)
            self._counts[name] += 1
        return out

    def on_loss(self, loss: torch.Tensor) -> None:
        """`loss` is about to be differentiated."""
        compared = [met for met in self._meetings if met.out is not None and met.name in SUPERVISED]
        outs = [met.out for met in compared if met.out is not None and met.out.requires_grad]
        if not outs:
            return
        try:
            with DisableTorchFunction(), torch.enable_grad():
                slopes = torch.autograd.grad(loss, outs, retain_graph=True, allow_unused=True)
        except RuntimeError:  # a graph that cannot be walked twice
            return
        for met, slope in zip(compared, slopes, strict=True):
            if slope is not None:
                met.attracts = bool((slope >= 0).all())

    def _follow(self, name: str, number: int, args: Any, kwargs: Any, out: Any) -> None:
        given = tensors_in((*args, *kwargs.values()))
        if name == "set" or (name == "setitem" and not args[0].dim()):
            return
        if name == "setitem":
            written = [one for one in given if one.dim() and len(one) == len(args[0])]
            self._note(args[0], self._marks(args[0]).union(*map(self._marks, written)))
            return
        made = outputs_of(out)
        first = given[0] if given else None
        rows = _selected(name, args, kwargs) if first is not None and args[0] is first else None
        if rows is not None and first is not None and len(made) == 1:
            # what a network says may choose the rows: the nearest ones, sorted ones
            chosen = any(mark.computed for one in given[1:] for mark in self._marks(one))
            taken = set() if chosen else self._taken(name, number, first, rows, made[0])
            self._note(made[0], frozenset(taken))
            return
        if name == "arange" and len(made) == 1 and _FEWEST <= made[0].numel() <= _MOST_ROWS:
            self._count(made[0])
            return
        if name in FROM_ARRAYS:  # data from outside, whatever they were made of
            return
        if (name in BY_ROW or name in SUPERVISED) and len(given) > 1 and len(made) == 1:
            self._meet(name, given[0], given[1], made[0])
        if name in TURNING or (name == "get" and not _is_as_it_was(first, made)):
            given = []  # its rows are others
        marks = frozenset[_Rows]().union(*map(self._marks, given))
        if any(isinstance(one, torch.nn.Parameter) for one in given):
            marks = frozenset(replace(mark, computed=True) for mark in marks)
        for number, one in enumerate(made):
            # columns of a store are data of different kinds: states beside rewards
            apart = name in TO_COLUMNS and len(made) > 1
            self._note(
                one, frozenset(self._column(mark, number) for mark in marks) if apart else marks
            )

    def _note(self, tensor: torch.Tensor, marks: frozenset[_Rows]) -> None:
        if id(tensor) not in self._own:
            rows = len(tensor) if tensor.dim() else 0
            kept = frozenset(mark for mark in marks if len(self._numbers[mark.order]) == rows)
            self._rows[id(tensor)] = (weakref.ref(tensor), kept)

    def _column(self, rows: _Rows, number: int) -> _Rows:
        """A column of a part is a part of its own."""
        part = hash((rows.part, number))
        if rows.part in self._in_no_order:
            self._in_no_order.add(part)
        return replace(rows, part=part)

    def _count(self, tensor: torch.Tensor) -> None:
        """Numbers of rows, as the labels of a contrastive loss, stand for these rows."""
        every = torch.arange(len(tensor))
        if torch.equal(tensor.detach().cpu(), every):
            self._note(tensor, frozenset([_Rows(_COUNTED, len(tensor), self._order(every))]))

    def _marks(self, tensor: torch.Tensor) -> frozenset[_Rows]:
        """Which rows a tensor holds: of one from outside of the step, all of its own."""
        if tensor.dim() == 0 or id(tensor) in self._own or isinstance(tensor, torch.nn.Parameter):
            return frozenset()
        known = self._rows.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        if tensor.requires_grad or not _FEWEST <= len(tensor) <= _MOST_ROWS:
            return frozenset()
        if id(tensor) not in self._outside:
            every = self._order(torch.arange(len(tensor)))
            rows = _Rows(len(self._outside), len(tensor), every)
            if _in_no_order(tensor):
                self._in_no_order.add(rows.part)
            self._outside[id(tensor)] = (tensor, frozenset([rows]))  # its identity stays its own
        return self._outside[id(tensor)][1]

    def _taken(
        self, name: str, number: int, first: torch.Tensor, rows: Any, out: torch.Tensor
    ) -> frozenset[_Rows]:
        """The rows that a call took; nothing where they are rows of rows."""
        if first.dim() == 0 or len(first) > _MOST_ROWS:
            return frozenset()
        every = torch.arange(len(first))
        chosen = every[rows]
        if chosen.dim() != 1 or out.dim() == 0 or len(chosen) != len(out):
            return frozenset()
        moves = len(chosen) == len(every) and bool((chosen.sort().values == every).all())
        if moves and bool((chosen == every).all()):
            return self._marks(first)
        found = set()
        for mark in self._marks(first):
            before = self._numbers[mark.order]
            if len(before) != len(first):  # it was made of rows of others
                continue
            order = self._order(before[chosen])
            found.add(replace(mark, order=order))
            self._taken_in.setdefault(order, set()).add(mark.part)
            if (mark.part, order) not in self._takings:
                own, caller = calling_places(5)
                self._takings[mark.part, order] = _Taking(name, number, moves, caller or own)
        return frozenset(found)

    def _order(self, numbers: torch.Tensor) -> bytes:
        key = numbers.numpy().tobytes()
        if key not in self._numbers:
            self._numbers[key] = numbers
            steps = numbers.diff()
            if bool((steps < 0).any()) and len(steps.unique()) > _REGULAR:
                self._at_random.add(key)
        return key

    def _meet(self, name: str, first: torch.Tensor, other: torch.Tensor, out: torch.Tensor) -> None:
        if first.dim() == 0 or other.dim() == 0 or len(first) != len(other):
            return
        sides = self._marks(first), self._marks(other)
        if all(sides):
            own, caller = calling_places(5)
            self._meetings.append(_Meeting(name, sides, caller or own, out, len(first)))
            for mark in (*sides[0], *sides[1]):
                self._parts.setdefault(mark.order, set()).add(mark.part)

    # -- judging -----------------------------------------------------------------------------------

    @property
    def found(self) -> RowsApart | None:
        """The first place where that is sure, else the first where the same steps with the rows as
        they were can tell."""
        told = [facts for met in self._meetings if (facts := self._judged(met)) is not None]
        return next((one for one in told if one.sure), told[0] if told else None)

    def _judged(self, met: _Meeting) -> RowsApart | None:
        pair = self._apart(met)
        compares = met.name in SUPERVISED
        first, other = ({mark.part for mark in side} for side in met.sides)
        if pair is None or (first & other and not compares):  # pairs of one part
            return None
        odd, usual = sorted(pair, key=lambda order: self._oddness(met, order), reverse=True)
        taking = self._taking(met, odd)
        if taking is None or self._is_moved_together(odd, usual):
            return None
        parts, others = self._parts[odd], self._parts[usual]
        theirs = others if taking.moves else others | self._taken_in.get(usual, set())
        taken = not parts & (theirs | {_COUNTED}) and len(others) >= _PARTS and len(parts) == 1
        # inputs that are mixed before a network, and what two networks say, may be of any samples
        taken = taken and (taking.moves or self._weighs(met, odd, usual))
        random = bool({odd, usual} & self._at_random) or self._shuffled
        random = random or first | other <= self._in_no_order | {_COUNTED}
        brought = not other <= first | {_COUNTED}
        turned = compares and bool(met.attracts) and brought and taking.name != "getitem"
        sure = random and (taken or turned)
        # what a network says of other rows may be what their own are to come to
        plain = brought or not compares or not any(mark.computed for mark in met.sides[1])
        if not sure and not (random and taking.moves and plain and met.attracts is not False):
            return None
        before = self._taking(met, usual)
        return RowsApart(
            combined=met.name,
            at=resolved(met.place),
            taken=taking.name,
            number=taking.number,
            taken_at=resolved(taking.place),
            usual_at=resolved(before.place) if before is not None else None,
            rows=len(self._numbers[odd]),
            parts=len(others),
            sure=sure,
        )

    def _weighs(self, met: _Meeting, odd: bytes, usual: bytes) -> bool:
        """The odd rows are given ones, and meet what a network says of the usual ones."""
        marks = [mark for side in met.sides for mark in side]
        given = not any(mark.computed for mark in marks if mark.order == odd)
        return given and any(mark.computed for mark in marks if mark.order == usual)

    def _oddness(self, met: _Meeting, order: bytes) -> tuple[bool, int, bool]:
        """Rows that a call took, the fewest parts, and rows that were moved are the odd ones."""
        taking = self._taking(met, order)
        moves = taking is not None and taking.moves
        return taking is not None, -len(self._parts[order]), moves

    def _taking(self, met: _Meeting, order: bytes) -> _Taking | None:
        """The first call that gave one of the sides rows in this order."""
        marks = [mark for side in met.sides for mark in side if mark.order == order]
        found = [self._takings.get((mark.part, order)) for mark in marks]
        return next((taking for taking in found if taking is not None), None)

    def _apart(self, met: _Meeting) -> tuple[bytes, bytes] | None:
        """The orders of the two sides, where these have no row in common at most places."""
        first, other = met.sides
        found = None
        for mark in first:
            for one in other:
                if _COUNTED in (mark.part, one.part):  # it stands for places in the batch
                    counted = mark.order if mark.part == _COUNTED else one.order
                    apart = self._differ(counted, self._order(torch.arange(met.rows)))
                elif mark.stored == one.stored:
                    apart = self._differ(mark.order, one.order) and not self._is_later(mark, one)
                else:
                    continue
                if not apart:
                    return None
                found = (mark.order, one.order)
        return found

    def _differ(self, one: bytes, other: bytes) -> bool:
        numbers, others = self._numbers[one], self._numbers[other]
        return len(numbers) == len(others) and float((numbers == others).float().mean()) < _SAME

    def _is_later(self, one: _Rows, other: _Rows) -> bool:
        """The rows of one part are those a few behind the other's, as where a forecast is compared
        with what came later; in a batch that was shuffled there is no later."""
        numbers, others = self._numbers[one.order], self._numbers[other.order]
        return not self._shuffled and len((numbers - others).unique()) <= _OF_A_SHIFT

    def _is_moved_together(self, odd: bytes, usual: bytes) -> bool:
        """Rows in the odd order meet values that hold them as well, from another part: mixed
        samples, whose targets are moved with them."""
        for met in self._meetings:
            for one, other in (met.sides, met.sides[::-1]):
                orders = {mark.order for mark in one}
                own = {mark.part for mark in one if mark.order == odd}
                theirs = {mark.part for mark in other if mark.order == odd}
                if {odd, usual} <= orders and theirs - own:
                    return True
        return False


def _is_as_it_was(tensor: torch.Tensor | None, made: list[torch.Tensor]) -> bool:
    """An attribute that is the tensor by another name, as `data`; not `T`."""
    if tensor is None or len(made) != 1:
        return False
    return made[0].shape == tensor.shape and made[0].stride() == tensor.stride()


def _in_no_order(tensor: torch.Tensor) -> bool:
    """Its rows are no more like their neighbours than like others: they are no time steps."""
    rows = (
        tensor[:_LOOKED_AT].detach().flatten(1) if tensor.dim() > 1 else tensor[:_LOOKED_AT, None]
    )
    if rows.is_complex() or rows.numel() == 0 or rows.shape[1] > _MOST_ROWS:
        return False
    rows = rows.to("cpu", torch.float32)
    others = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    near, far = (rows[1:] - rows[:-1]).abs().sum(1), (rows - others).abs().sum(1)
    return bool(near.mean() > _NO_ORDER * far.mean() > 0)


def _selected(name: str, args: Any, kwargs: Any) -> Any:
    """What picks rows of the first argument: an index, a slice or a mask; None of a call that does
    not pick or move rows."""
    if name == "getitem" and len(args) > 1:
        first = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
        if isinstance(first, torch.Tensor) and first.dim() == 1 and not first.is_floating_point():
            return first.detach().cpu()
        if isinstance(first, slice) and first != slice(None):
            return first
        return first if isinstance(first, list) and first else None
    if name == "index_select" and _argument(args, kwargs, 1, "dim") == 0:
        return _argument(args, kwargs, 2, "index").detach().cpu()
    if name not in ("roll", "flip", "flipud"):
        return None
    dims = _argument(args, kwargs, 2 if name == "roll" else 1, "dims")
    dims = (dims,) if isinstance(dims, int) else tuple(dims or ())
    if name == "roll" and 0 in dims:
        shifts = _argument(args, kwargs, 1, "shifts")
        shift = shifts if isinstance(shifts, int) else shifts[dims.index(0)]
        return torch.arange(len(args[0])).roll(shift)
    if name == "flipud" or (name == "flip" and 0 in dims):
        return torch.arange(len(args[0])).flip(0)
    return None


def _argument(args: Any, kwargs: Any, at: int, name: str) -> Any:
    return args[at] if len(args) > at else kwargs.get(name)
