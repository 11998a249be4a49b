"""## What it checks
A line that the last step runs several times, each time with a number for each sample, or one for
all, that is a function of the model. The last of these numbers is added to the loss; no call of
torch's reads the others. A warning where there is one for each sample, each of another layer; else
an info, since the last pass may be all that is meant.

## Why it matters
A term that is collected over layers, time steps or parts is kept of the last one only: `loss =` was
written for `loss +=`. The others train nothing, and where the term holds the model back, as the
log-determinants of a flow do, it no longer does.

## Example
    for layer in self.layers:
        x, log_det = layer(x)           # only the last layer's is left
    return prior(x) + log_det

## Fix
    total = 0.0
    for layer in self.layers:
        x, log_det = layer(x)
        total = total + log_det
    return prior(x) + total

## See also
ND646 discarded-result, ND677 idle-term
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import ADDED_UP

_MANY = 3  # numbers that nothing reads: fewer may be left over by chance


@rule(
    "ND683",
    "lost-terms",
    "warning",
    "a term that is computed several times, and added once",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    if calls is None:
        return
    read = {argument.made_by for call in calls.calls for argument in call.arguments}
    reaching, added = calls.reaching_the_loss(), _added(calls)
    alike: dict[object, list[CallFacts]] = {}
    for call in calls.calls:
        if call.requires_grad and len(call.shape) <= 1 and call.site is not None:
            key = call.name, call.shape, location_key(call.location or call.site)
            alike.setdefault(key, []).append(call)
    for *others, last in alike.values():
        lost = [call for call in others if call.index not in reaching and call.index not in read]
        if not lost or len(lost) < len(others) or last.index not in added:
            continue
        yield learning_claim(
            rule,
            location_key(last.site) or ("terms", last.index),
            title=f"{len(lost)} of {len(lost) + 1} values that {last.name} gives here are lost: "
            "only the last is added to the loss",
            explanation=f"The last step makes {len(lost) + 1} such values with this line. Nothing "
            "reads the others, and they have no part in the loss.",
            culprit=at_call(last, evidence),
            # the last pass of one network may be all that is meant
            severity="warning" if last.shape and _of_several(others, last) else "info",
            step=len(evidence.losses) - 1,
            weight=confidence(0.75, 0.4 if len(lost) >= _MANY else 0.1),
            notes=[("values", len(lost) + 1), ("shape of each", str(list(last.shape)))],
            fix="add up what each pass gives, where the variable is assigned",
            standing=WIRED,
        )
        return


def _of_several(others: list[CallFacts], last: CallFacts) -> bool:
    """Each of them is of another layer."""
    layers = [call.module for call in (*others, last)]
    return None not in layers and len(set(layers)) == len(layers)


def _added(calls: StepCalls) -> set[int]:
    """The calls whose values are added up to a loss, with factors and signs."""
    found, waiting = set[int](), list(calls.losses)
    while waiting:
        index = waiting.pop()
        if index in found:
            continue
        found.add(index)
        call = calls.calls[index]
        if call.name in ADDED_UP and (call.name not in ("mean", "sum") or call.shape == ()):
            waiting += [a.made_by for a in call.arguments if a.made_by is not None]
    return found
