"""## What it checks
A recurrent cell (GRUCell, LSTMCell, RNNCell) that is called at least four times in a step and whose
results, except the last one, are not used: neither by the next call nor by the loss.

## Why it matters
The state is not carried along the sequence: the network sees only the last position.

## Example
    for t in range(x.size(1)):
        h = torch.zeros(x.size(0), 32)
        h = self.cell(x[:, t], h)

## Fix
    h = torch.zeros(x.size(0), 32)
    for t in range(x.size(1)):
        h = self.cell(x[:, t], h)

## See also
ND513 cross-sample-leak
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import CELLS, FRESH

_FEWEST = 4


@rule(
    "ND158",
    "lost-state",
    "critical",
    "a recurrent cell whose state is not carried along",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    if calls is None:
        return
    reaching = set[int]()
    for loss in calls.losses:
        reaching |= calls.behind(calls.calls[loss], stop=FRESH)[0]
    cells: dict[tuple[str, str | None], list[CallFacts]] = {}
    for call in calls.calls:
        if call.name in CELLS and call.requires_grad:
            cells.setdefault((call.name, call.module), []).append(call)
    for (name, module), made in cells.items():
        used = [call for call in made if call.index in reaching]
        # of two cells in one another's place, and of padding, more than one is used
        if len(made) < _FEWEST or used != made[-1:]:
            continue
        yield learning_claim(
            rule,
            location_key(made[-1].site) or ("state", module),
            title=f"{module or name} is called {len(made)} times, and only the last result is used",
            explanation="Neither the next call nor the loss uses the others: what the cell "
            "computed before the last position is lost.",
            culprit=at_call(made[-1], evidence),
            step=len(evidence.losses) - 1,
            weight=confidence(0.8, 0.5 if len(made) > 2 * _FEWEST else 0.2),
            notes=[("calls", len(made)), ("used", len(used))],
            fix="create the initial state before the loop, and pass each call the state of the "
            "previous one",
            standing=WIRED,
        )
        return
