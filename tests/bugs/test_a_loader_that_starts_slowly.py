"""A few steps that waited long, while workers started or the machine was busy, make no slow loader."""

from __future__ import annotations

import torch

from nanodoc.facts.evidence import Evidence
from nanodoc.measure.data import data_facts
from nanodoc.rules.data import slow_loader


def findings(waits: list[float]) -> int:
    facts = data_facts(
        [torch.ones(4, 3)],
        loader=True,
        per_pass=10,
        waits=waits,
        step_seconds=0.001 * len(waits),
        steps=len(waits),
    )
    evidence = Evidence(data=facts, losses=(1.0,) * len(waits))
    return len(list(slow_loader.check.check(slow_loader.check, evidence)))


def test_only_steady_waiting_is_a_slow_loader() -> None:
    assert findings([0.5, 0.2] + [1e-5] * 28) == 0
    assert findings([0.01] * 30) == 1
