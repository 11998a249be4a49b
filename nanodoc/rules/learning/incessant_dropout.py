"""## What it checks
The last step is run once more with the model in eval mode, and a call in one of its modules still
drops values at random, with one chance for all of them: `F.dropout`, attention with a `dropout_p`,
or `bernoulli_` by hand. The last is only information, since it may be a part of the task. Calls of
`F.dropout` that pass `training=True` explicitly are taken as intended, and so are noise and draws
whose chances the model computes.

## Why it matters
A function does not know the model's mode: without `training=self.training` it also drops in
validation and in production, and predictions differ from call to call.

## Example
    x = F.dropout(x, 0.5)

## Fix
    x = F.dropout(x, 0.5, training=self.training)
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)

## See also
ND634 heavy-dropout, ND642 validated-in-training-mode; torch.nn.functional.dropout
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, learning_claim
from nanodoc.vocabulary.calls import ATTENTION, DROPOUTS

_ELSE = {"scaled_dot_product_attention": "dropout_p=p if self.training else 0.0"}
_GATE = "draw only if self.training"


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
        claim = learning_claim(
            rule,
            location_key(call.site) or ("dropout", call.index),
            title=f"{call.name} drops values in eval mode too",
            explanation="Re-run with the whole model in eval mode, the step still drops "
            f"{_chance(call)} at random here: the call does not get the mode.",
            culprit=at_call(call, evidence),
            step=inspection.step if inspection is not None else None,
            weight=0.9,  # seen in eval mode
            notes=[("p", call.options.get("p", call.options.get("dropout_p")))],
            fix="training=self.training" if call.name in DROPOUTS else _ELSE.get(call.name, _GATE),
            standing=WIRED,
        )
        # what is drawn by hand may be a part of the task
        info = call.name not in (*DROPOUTS, *ATTENTION)
        yield replace(claim, finding=replace(claim.finding, severity="info")) if info else claim
        return


def _chance(call: CallFacts) -> str:
    if call.name in DROPOUTS:
        return f"{call.options.get('p', 0.5):.0%} of the values"
    share = call.options.get("dropout_p")
    return f"{share:.0%} of the attention" if share is not None else "values"


def _is_meant(call: CallFacts) -> bool:
    """The call says `training` itself, or does not show."""
    if call.name not in DROPOUTS:
        return False
    text = call.location.expression if call.location is not None else None
    try:
        tree = ast.parse(text or "", mode="eval").body
    except SyntaxError:
        return True
    return not isinstance(tree, ast.Call) or (
        len(tree.args) > 2 or any(given.arg in ("training", None) for given in tree.keywords)
    )
