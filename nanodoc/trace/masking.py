"""Element-level questions about a backward birth: did forward discard these elements, and was their
gradient zero?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nanodoc.facts.ops import OpFacts, ValuesAt
from nanodoc.trace.examine import Positions, Request
from nanodoc.trace.graph import StepTrace
from nanodoc.vocabulary.names import op_name

_HOPS = 64  # forward ops looked at downstream of the singular one
_GUARD_SHARE = 0.5  # of the elements a guard discards, at least this share is singular


@dataclass(frozen=True, slots=True)
class Gather:
    """A pending look at one input of one op, at the positions of a birth."""

    index: int
    position: int
    slot: int
    discards_when_zero: bool = False
    shape: tuple[int, ...] = ()
    bad: int = 0
    """How many elements went bad in all."""

    def all_zero(self, trace: StepTrace) -> bool:
        """The values looked at are all exactly zero (and there are some)."""
        values = self._values(trace)
        return values is not None and values.count > 0 and values.zeros == values.count

    def discards_all(self, trace: StepTrace) -> bool:
        """As a boolean mask, what was looked at throws every one of the elements away."""
        values = self._values(trace)
        detail = trace.details.get(self.index)
        if (
            values is None
            or detail is None
            or not values.count
            or detail.inputs[self.position].dtype != "bool"
        ):
            return False
        if values.zeros != (values.count if self.discards_when_zero else 0):
            return False
        # A guard discards little else than the singular elements. A piecewise function that happens
        # to have its singular point in the other branch discards many healthy ones, and masking is
        # not what is wrong with it.
        mask = detail.inputs[self.position]
        spread = math.prod(self.shape) / max(mask.numel, 1)
        discarded = (mask.zeros if self.discards_when_zero else mask.numel - mask.zeros) * spread
        return self.bad >= _GUARD_SHARE * discarded

    def _values(self, trace: StepTrace) -> ValuesAt | None:
        detail = trace.details.get(self.index)
        return (
            detail.gathered[self.slot]
            if detail is not None and self.slot < len(detail.gathered)
            else None
        )


@dataclass(frozen=True, slots=True)
class Masks:
    """Candidate masks of one birth, nearest first."""

    gathers: tuple[Gather, ...]

    def op(self, trace: StepTrace) -> OpFacts | None:
        """The first mask that discards every bad element."""
        for gather in self.gathers:
            if gather.discards_all(trace):
                return trace.facts(gather.index)
        return None


def _ask(
    requests: dict[int, Request], index: int, input_position: int, positions: Positions
) -> int:
    request = requests.setdefault(index, Request())
    request.gathers.append((input_position, positions))
    return len(request.gathers) - 1


def find_mask(
    trace: StepTrace, site: int, positions: Positions, bad: int, requests: dict[int, Request]
) -> Masks | None:
    """Asks for the masks downstream of forward op `site`, followed through at most `_HOPS` ops.

    `where(condition, a, b)` discards `a` where the condition is zero and `b` where it is not;
    `masked_fill` discards where its mask is set; `x[mask]` and `masked_select` where it is not.
    """
    found: list[Gather] = []
    reached, queue = {site}, [site]
    while queue and len(reached) < _HOPS:
        index = queue.pop(0)
        for reader in trace.consumers.get(index, []):
            record = trace.records[reader]
            if record.phase not in ("forward", "recompute") or reader in reached:
                continue
            reached.add(reader)
            queue.append(reader)
            name = op_name(record.info.name)
            fed = [i for i, (log, n) in enumerate(record.inputs) if n and log[n - 1] in reached]
            if name == "where" and len(record.inputs) == 3 and fed and fed[0] in (1, 2):
                found.append(
                    Gather(
                        reader,
                        0,
                        _ask(requests, reader, 0, positions),
                        fed[0] == 1,
                        positions.shape,
                        bad,
                    )
                )
            elif name == "masked_fill" and fed and fed[0] == 0:
                found.append(
                    Gather(
                        reader, 1, _ask(requests, reader, 1, positions), False, positions.shape, bad
                    )
                )
            elif (
                name in ("masked_select", "index")
                and len(record.inputs) == 2
                and fed
                and fed[0] == 0
            ):
                found.append(
                    Gather(
                        reader, 1, _ask(requests, reader, 1, positions), True, positions.shape, bad
                    )
                )
    return Masks(tuple(found)) if found else None


def gradient_request(
    trace: StepTrace, index: int, positions: Positions, requests: dict[int, Request]
) -> Gather | None:
    """Asks for the gradient that arrived at the bad elements: the first input of the node that
    another node computed."""
    group = trace.node_group(index)
    inside = set(group)
    for member in group:
        for position, (log, length) in enumerate(trace.records[member].inputs):
            last = log[length - 1] if length else None
            if last is None or last < 0 or last in inside:
                continue
            if trace.records[last].phase == "backward":
                return Gather(member, position, _ask(requests, member, position, positions))
    return None
