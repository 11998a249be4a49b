"""## What it checks
The exception of torch.load for a checkpoint whose tensors were saved on a device that this machine,
or this process (CUDA_VISIBLE_DEVICES), does not have.

## Why it matters
The file loads only on the machine that wrote it.

## Example
    RuntimeError: Attempting to deserialize object on CUDA device 2 but […] device_count() is 1.

## Fix
    state = torch.load(path, map_location="cpu")

## See also
ND706 device-mismatch, ND710 unloaded-checkpoint
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.crash.failure_claims import failure_claim

_DEVICE = re.compile(
    r"Attempting to deserialize object on (?:a )?(?P<kind>\w+) ?(?:device(?: (?P<number>\d+))?)?"
)


@rule(
    "ND703",
    "checkpoint-device",
    "critical",
    "torch.load of a checkpoint from a device that does not exist here",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    match = _DEVICE.search(failure.message) if failure is not None else None
    if failure is None or match is None:
        return
    number = match["number"]
    saved = f"{match['kind']} device{' ' + number if number else ''}"
    where = next(
        (span for span in reversed(failure.frames) if "load(" in span.code),
        failure.frames[-1] if failure.frames else None,
    )
    claim = failure_claim(
        rule,
        evidence,
        title=f"the checkpoint was saved on {saved}, which does not exist here",
        specificity=Specificity.SPECIAL,
        explanation="torch.load puts every tensor back on the device it was saved from, unless "
        "map_location says otherwise.",
        fixes=[
            Fix(
                title="load to the CPU or to an available device; load_state_dict copies the "
                "values from there",
                patch=_mapped(where.expression or "") if where is not None else None,
                confidence="likely",
            )
        ],
        extra=[("saved on", saved)],
    )
    yield claim


def _mapped(code: str) -> str | None:
    """The call with map_location added, where it is a `load(...)` on one line."""
    match = re.search(r"\bload\(", code)
    if match is None or "\n" in code:
        return None
    depth = 0
    for position in range(match.end() - 1, len(code)):
        depth += {"(": 1, ")": -1}.get(code[position], 0)
        if depth == 0:
            return f'{code[:position]}, map_location="cpu"{code[position:]}'
    return None
