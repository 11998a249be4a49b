"""torch's flight recorder: the last collectives that this process entered."""

from __future__ import annotations

import json
import sys
from typing import Any

from nanodoc.facts.collectives import LastCollective

_MOST_GROUPS = 8
_MOST_TENSORS = 4
"""Whose shapes are told."""


def last_collectives() -> tuple[LastCollective, ...]:
    """One for every process group that this rank has entered a collective of, the last entered
    last; none where torch's build or version records none.

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
    last: dict[str, tuple[int, LastCollective]] = {}
    for entry in entries:
        try:
            read = None if entry["is_p2p"] else _read(entry)
            at = int(entry["time_created_ns"])
        except (KeyError, TypeError, ValueError, IndexError):
            continue
        if read is None:
            continue
        known = last.get(read.group)
        if known is None or known[1].number <= read.number:
            last[read.group] = at, read
    return tuple(one for _, one in sorted(last.values(), key=lambda pair: pair[0]))[-_MOST_GROUPS:]


def _read(entry: dict[str, Any]) -> LastCollective:
    group, about = entry["process_group"]
    sizes = entry.get("input_sizes") or []
    types = entry.get("input_dtypes") or []
    done = bool(entry.get("retired")) or entry.get("state") == "completed"
    return LastCollective(
        group=str(group),
        about=str(about),
        number=int(entry["collective_seq_id"]),
        op=str(entry["profiling_name"]).partition(":")[2],
        sizes=tuple(tuple(map(int, size)) for size in sizes[:_MOST_TENSORS]),
        types=tuple(map(str, types[:_MOST_TENSORS])),
        waits=not done,
    )
