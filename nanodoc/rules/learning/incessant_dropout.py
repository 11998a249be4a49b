"""## What it checks
The last step is run once more with the model in eval mode, and a call of `F.dropout` still drops
values. Calls that pass `training=True` explicitly are taken as intended.

## Why it matters
`F.dropout` does not know the model's mode: without `training=self.training` it also drops in
validation and in production, and predictions differ from call to call.

## Example
    x = F.dropout(x, 0.5)

## Fix
    x = F.dropout(x, 0.5, training=self.training)

## See also
ND634 heavy-dropout, ND642 validated-in-training-mode; torch.nn.functional.dropout
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, learning_claim


@rule(
    "ND644",
    "incessant-dropout",
    "warning",
    "dropout that eval() does not turn off",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    for index in inspection.still_dropping if inspection is not None else ():
        call = inspection.calls.calls[index] if inspection is not None else None
        if call is None or _is_meant(call):
            continue
        yield learning_claim(
            rule,
            location_key(call.site) or ("dropout", call.index),
            title=f"{call.name} drops values in eval mode too",
            explanation="Re-run with the whole model in eval mode, the step still drops "
            f"{call.options.get('p', 0.5):.0%} of the values here: the call does not get the "
            "mode.",
            culprit=at_call(call, evidence),
            step=inspection.step if inspection is not None else None,
            weight=0.9,  # seen in eval mode
            notes=[("p", call.options.get("p"))],
            fix="training=self.training",
            standing=WIRED,
        )
        return


def _is_meant(call: CallFacts) -> bool:
    """The call says `training` itself, or does not show."""
    text = call.location.expression if call.location is not None else None
    try:
        tree = ast.parse(text or "", mode="eval").body
    except SyntaxError:
        return True
    return not isinstance(tree, ast.Call) or (
        len(tree.args) > 2 or any(given.arg in ("training", None) for given in tree.keywords)
    )
