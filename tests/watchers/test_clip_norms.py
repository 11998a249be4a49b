"""The norms before clipping are kept for the report: few of a long run, spread over all of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from nanodoc.watchers.clip_calls import _MOST_NORMS, ClipCalls


def test_a_long_run_keeps_few_norms_spread_over_it() -> None:
    protocol: Any = SimpleNamespace(clip_norms=[])
    calls = ClipCalls(protocol, protocol, lambda: None)
    for step in range(10_000):
        calls._note(torch.tensor(float(step)))
    kept = [int(norm) for norm, _ in protocol.clip_norms]
    assert _MOST_NORMS // 2 <= len(kept) <= _MOST_NORMS
    assert kept == list(range(0, 10_000, kept[1]))
