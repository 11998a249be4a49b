"""torch's flight recorder: the last collectives that this process entered."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from nanodoc.facts.collectives import LastCollective

_MOST_GROUPS = 8
_MOST_THROUGH = 6
"""Of a group's collectives that are over: a rank may get through one that another has called
otherwise, and stand still in one of the next."""
_MOST_TENSORS = 4
"""Whose shapes are told."""


def last_collectives() -> tuple[LastCollective, ...]:
    """Where this rank is in every process group that it has entered a collective of, the last
    entered last; none where torch's build or version records none.

    Gloo and NCCL record into buffers of their own (`TORCH_FR_BUFFER_SIZE`, 2000 entries).
    """
    torch = sys.modules.get("torch")
    c10d = sys.modules.get("torch._C._distributed_c10d")
    if torch is None or c10d is None:
        return ()
    entries: list[dict[str, Any]] = []
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is None:
            continue
        try:
            entries += json.loads(dump()).get("entries", [])
        except Exception:  # it is torch's own format, which may change
            continue
    found: dict[tuple[str, str], list[LastCollective]] = {}
    at: dict[tuple[str, str], int] = {}
    for entry in entries:
        try:
            read = None if entry["is_p2p"] else _read(entry)
            when = int(entry["time_created_ns"])
        except (KeyError, TypeError, ValueError, IndexError):
            continue
        if read is not None:
            found.setdefault(read.key, []).append(read)
            at[read.key] = max(at.get(read.key, when), when)
    return tuple(_last(found[key]) for key in sorted(found, key=at.__getitem__)[-_MOST_GROUPS:])


def _last(entered: list[LastCollective]) -> LastCollective:
    """Of one group's: the first that is waited for, or else the last of all."""
    by_number = sorted(entered, key=lambda one: one.number)
    last = next((one for one in by_number if one.waits), by_number[-1])
    before = [one for one in by_number if one.number < last.number]
    return replace(last, entered=by_number[-1].number, through=tuple(before[-_MOST_THROUGH:]))


def _read(entry: dict[str, Any]) -> LastCollective:
    group, about = entry["process_group"]
    sizes = entry.get("input_sizes") or []
    types = entry.get("input_dtypes") or []
    done = bool(entry.get("retired")) or entry.get("state") == "completed"
    backend, _, op = str(entry["profiling_name"]).partition(":")
    number = int(entry["collective_seq_id"])
    return LastCollective(
        group=str(group),
        backend=backend,
        about=str(about),
        number=number,
        entered=number,
        op=op,
        sizes=tuple(tuple(map(int, size)) for size in sizes[:_MOST_TENSORS]),
        types=tuple(map(str, types[:_MOST_TENSORS])),
        waits=not done,
    )
