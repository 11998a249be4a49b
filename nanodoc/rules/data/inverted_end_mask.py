"""## What it checks
Regressions whose target is a reward plus a network's value of the next state, as in Q-learning and
for critics: that value is multiplied by a 0/1 factor which the code calls done or terminal, used
unchanged, and which is 0 in most of the batch.

## Why it matters
While an episode continues, nothing is learned about the future, and where it ended, the value of a
state that does not exist is added. The loss falls: such targets are easy to learn.

## Example
    target = reward + gamma * q_next * done

## Fix
    target = reward + gamma * q_next * (1 - done)

## See also
ND140 unread-end-flags; Mnih et al. 2015, Human-level control through deep reinforcement learning,
algorithm 1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.rules.learning.next_values import is_of_a_network, next_values

_ENDS = re.compile(r"(?i)\b\w*(done|termina)\w*")
"""How code calls the flags of the steps that end an episode."""
_OTHERWISE = re.compile(r"(?i)not|non|mask|alive|cont|~|-")
"""It may call the opposite so, too."""


@rule(
    "ND137",
    "inverted-end-mask",
    "critical",
    "values of the next state are used only where episodes end",
    needs=("inspection",),
    thresholds={"ones": Threshold(0.5, "share of the factors that are 1")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    if calls is None:
        return
    for call in _factors(calls):
        ones = call.notes.product.ones
        if not ones or ones >= check.limit(evidence, "ones") or not _is_named(call):
            continue
        yield learning_claim(
            rule,
            location_key(call.site) or ("targets", "ends"),
            title=f"{1 - ones:.0%} of the targets ignore the next state: the done flag is the "
            "factor",
            explanation="The target is a reward plus a network's value of the next state, times "
            f"a flag that is 1 in {ones:.0%} of the batch. A done flag should be 1 where that "
            "value is left out.",
            culprit=at_call(call, evidence),
            step=len(evidence.losses) - 1,
            weight=0.9,  # the flags, their use and their name all say so
            notes=[("share of ones", f"{ones:.3g}")],
            fix="multiply by 1 minus the flag",
            standing=WIRED,
        )
        return


def _factors(calls: StepCalls) -> Iterator[CallFacts]:
    """The products by a flag from outside, in targets of a reward and a next value."""
    for _, value in next_values(calls):
        yield from _products(calls, value)


def _products(calls: StepCalls, value: ArgumentFacts) -> Iterator[CallFacts]:
    made = calls.origin(value)
    while isinstance(made, CallFacts) and made.name == "mul":
        inner = next((a for a in made.arguments if is_of_a_network(calls, a)), None)
        flags = [a for a in made.arguments if a is not inner]
        if inner is None:
            return
        if len(flags) == 1 and _comes_as_it_is(calls, flags[0]):
            yield made
        made = calls.origin(inner)


def _comes_as_it_is(calls: StepCalls, flag: ArgumentFacts) -> bool:
    """Nothing has turned it over: it was scaled, or given another type, at most."""
    made = calls.origin(flag)
    while isinstance(made, CallFacts) and len(made.arguments) == 1:
        if made.name not in ("mul", "bool"):
            return False
        made = calls.origin(made.arguments[0])
    return isinstance(made, ArgumentFacts) or not made.arguments


def _is_named(call: CallFacts) -> bool:
    expression = call.site.expression if call.site is not None else None
    names = _ENDS.finditer(expression or "")
    found = [name.group() for name in names]
    return bool(found) and not _OTHERWISE.search("".join(found)) and "1 -" not in str(expression)
