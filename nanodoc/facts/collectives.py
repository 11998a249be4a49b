"""The collectives that a rank has entered, as facts. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

_SAME_SHAPES = (
    *("all_reduce", "allreduce", "broadcast", "reduce", "barrier"),
    *("all_gather", "_allgather_base", "_all_gather_base", "all_gather_into_tensor"),
)
"""Collectives in which every rank gives tensors of the same shapes and types, as torch writes their
names; in the others (scatter, gather, all_to_all) some ranks may give what others don't."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LastCollective:
    """Where a rank is in one process group, as torch's flight recorder has it: the first collective
    that it is not through with, or else the last that it entered. On a device, whose host runs
    ahead, it may have entered many more."""

    group: str
    """Its name, which is the same on all ranks, and no other group's."""
    backend: str = ""
    """"gloo", "nccl": each of a group's counts by itself."""
    about: str
    """What it is for, as torch or the training says: "default_pg"."""
    number: int
    """Counted in the group, from 1 on."""
    op: str
    sizes: tuple[tuple[int, ...], ...] = ()
    """Of what the rank gave to it."""
    types: tuple[str, ...] = ()
    waits: bool = False
    """The rank was not through with it."""
    entered: int = 0
    """The number of the last one that it entered."""
    through: tuple[LastCollective, ...] = ()
    """Some of the group's that came before it, which the rank is through with, in their order."""

    @property
    def key(self) -> tuple[str, str]:
        """What the numbers are counted in."""
        return self.group, self.backend

    @property
    def call(self) -> str:
        """ "all_reduce of float [3, 4]"."""
        given = " and ".join(
            f"{kind.lower()} [{', '.join(map(str, size))}]"
            for kind, size in zip(self.types, self.sizes, strict=False)
        )
        return f"{self.op} of {given}" if given else self.op

    @property
    def place(self) -> str:
        """ "collective 7 of group 0"."""
        named = "" if self.about in ("", "undefined", "default_pg") else f" ({self.about})"
        return f"collective {self.number} of group {self.group}{named}"

    def __str__(self) -> str:
        return f"{self.call}, {self.place}"


def disagree(one: LastCollective, other: LastCollective) -> bool:
    """They are the same collective of one group, and the ranks have called another op, or with
    other shapes: neither can end."""
    if (one.key, one.number) != (other.key, other.number):
        return False
    if one.op != other.op:
        return True
    return one.op in _SAME_SHAPES and (one.sizes, one.types) != (other.sizes, other.types)


def entered_last(collectives: Sequence[LastCollective]) -> LastCollective | None:
    """The one that the rank waits in; else the last one that it entered. They are in that order
    already."""
    return next((one for one in reversed(collectives) if one.waits), None) or (
        collectives[-1] if collectives else None
    )


def collectives_of(told: Any) -> tuple[LastCollective, ...]:
    """From plain data; empty where it is not what it should be."""
    try:
        return tuple(
            replace(_read(row), through=tuple(map(_read, row.get("through", ()))))
            for row in told
            if isinstance(row, Mapping)
        )
    except (TypeError, KeyError, ValueError, OverflowError):
        return ()


def _read(row: Mapping[str, Any]) -> LastCollective:
    """Without those that came before it."""
    return LastCollective(
        group=str(row["group"]),
        backend=str(row.get("backend", "")),
        about=str(row["about"]),
        number=int(row["number"]),
        op=str(row["op"]),
        sizes=tuple(tuple(map(int, size)) for size in row["sizes"]),
        types=tuple(map(str, row["types"])),
        waits=bool(row.get("waits", False)),
        entered=int(row.get("entered", 0)),
    )
