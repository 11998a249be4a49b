"""## What it checks
Regressions whose target is a reward plus a network's value of the next state, where the batch of
next states equals, value by value, the batch of states that the prediction is made from.

## Why it matters
If an environment writes its state into the same array, or a memory keeps references, every
transition has the same state before and after. The values are learned from steps that lead nowhere.

## Example
    self.state += velocity                  # in place
    return self.state, reward, done, False, {}
    ...
    memory.append((state, action, reward, after))

## Fix
    memory.append((state.copy(), action, reward, after.copy()))

## See also
ND119 changing-items, ND140 unread-end-flags
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.bootstrapped import bootstrapped, is_of_a_network
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, calls_of, learning_claim

_MANY = 16  # transitions: fewer may be alike by chance


@rule(
    "ND152",
    "same-states",
    "critical",
    "next states that are the states themselves",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    if calls is None or inspection is None:
        return
    for value, predicted in ((one.value, one.predicted) for one in bootstrapped(calls)):
        if _is_masked_away(calls, value):
            continue
        after, before = _reader(calls, value), _reader(calls, predicted)
        if after is None or before is None or not _are_two_of_one(calls, after, before):
            continue
        rows = before.arguments[0].shape[0]
        if rows < _MANY:
            continue
        line = inspection.remembered_at or after.site
        yield learning_claim(
            rule,
            location_key(line) or ("states",),
            title=f"the {rows} next states of the batch are its states",
            explanation="The target and the prediction are computed from exactly the same "
            "values: something wrote into arrays that a memory keeps only as references.",
            culprit=Culprit(kind="data", location=line),
            step=len(evidence.losses) - 1,
            weight=confidence(0.8, 0.5),
            notes=[("the next states are read at", after.site.place if after.site else None)],
            fix="keep copies: state.copy(), after.copy()",
            standing=WIRED,
        )
        return


def _is_masked_away(calls: StepCalls, value: ArgumentFacts) -> bool:
    """What a network says of the next states is multiplied by zeros alone: every transition of the
    batch ends its episode, and what comes after is all the same."""
    term: CallFacts | ArgumentFacts | None = calls.origin(value)
    while isinstance(term, CallFacts) and term.name == "mul":
        if term.notes.product.ones == 0:
            return True
        inner = next((a for a in term.arguments if is_of_a_network(calls, a)), None)
        term = calls.origin(inner) if inner is not None else None
    return False


def _are_two_of_one(calls: StepCalls, after: CallFacts, before: CallFacts) -> bool:
    """Two tensors of equal values. A whole sequence that both networks read is one tensor, of which
    the one takes what the other says of the next step."""
    one, other = calls.origin(after.arguments[0]), calls.origin(before.arguments[0])
    known = isinstance(one, CallFacts) or one.leaf is not None
    return (
        after.notes.read is not None
        and before.notes.read is not None
        and after.notes.read.mark == before.notes.read.mark
        and after.arguments[0].shape == before.arguments[0].shape
        and after.notes.read.address != before.notes.read.address
        and not (known and one == other)
    )


def _reader(calls: StepCalls, argument: ArgumentFacts) -> CallFacts | None:
    """The first layer behind it that reads what no layer has made."""
    made = calls.maker(argument)
    behind = sorted(calls.behind(made)[0]) if made is not None else []
    return next((calls.calls[i] for i in behind if calls.calls[i].notes.read is not None), None)
