"""## What it checks
A script that calls `load_state_dict` with a `state_dict` of the same model whose tensors share the
model's memory and have been written to since.

## Why it matters
`state_dict()` returns the model's own tensors, not copies. The "best" weights kept this way are
trained further with the model, and loading them changes nothing.

## Example
    if loss < best:
        best, weights = loss, model.state_dict()
    ...
    model.load_state_dict(weights)          # those of the last epoch

## Fix
    best, weights = loss, copy.deepcopy(model.state_dict())

## See also
torch.nn.Module.state_dict
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count, location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim


@rule(
    "ND643",
    "restored-to-itself",
    "warning",
    "weights that are restored but were never copied",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.asides.restored if evidence.asides is not None else None
    if found is None:
        return
    loaded = found.loaded_at.place if found.loaded_at is not None else None
    yield learning_claim(
        rule,
        location_key(found.taken_at or found.loaded_at) or ("restored",),
        title="the weights that are kept here are the model's own and are trained further",
        explanation=f"The state_dict holds the {count(found.tensors, 'parameter')} of "
        f"{found.model} itself, not copies. They were written to afterwards, and"
        + (f" at {loaded}" if loaded is not None else "")
        + " the model loads its own tensors: nothing is restored.",
        culprit=Culprit(kind="module", location=found.taken_at or found.loaded_at),
        phase="script",
        weight=0.95,  # one memory, written to in between: nothing is put back
        notes=[("loaded at", loaded), ("parameters", found.tensors)],
        fix="keep a copy: copy.deepcopy(model.state_dict())",
        standing=WIRED,
    )
