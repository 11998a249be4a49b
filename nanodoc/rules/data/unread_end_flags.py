"""## What it checks
Regressions whose target is a reward plus a factor times a network's value of the next state, as in
Q-learning and for critics, without any flag as a factor, in a function that assigns a variable such
as done or terminated and never reads it, or unpacks a named tuple without using such a field. An
info if the value is not the best of several actions: control tasks may end only by a time limit.

Also a line that unpacks the result of Gymnasium's `env.step` with `truncated` before `terminated`,
if the function reads the second one separately.

## Why it matters
When an episode has ended, there is no next state. With its value in the target, ending looks as
good as continuing: the values grow, and falling into a hole costs nothing.

## Example
    state, action, reward, after, done = buffer.sample(64)
    target = reward + gamma * target_net(after).max(1).values

## Fix
    target = reward + gamma * target_net(after).max(1).values * (1 - done)

An end caused only by a time limit does not count: keep the next value there.

## See also
ND137 inverted-end-mask; Mnih et al. 2015, Human-level control through deep reinforcement learning,
algorithm 1
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.bootstrapped import bootstrapped
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import LAYERS, MASKING, PLACING

_REPLACING = (*MASKING, *PLACING, "setitem", "index_add")
_MAXIMA = ("max", "amax", "argmax")


@rule(
    "ND140",
    "unread-end-flags",
    "warning",
    "values of the next state are added even where episodes end",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    if calls is None or inspection is None:
        return
    if inspection.swapped_flags is not None:
        yield _swapped(rule, evidence, inspection.swapped_flags)
        return
    for total, value in ((one.total, one.value) for one in bootstrapped(calls)):
        site = total.site
        flags = [name for name, place in inspection.unread_flags if _beside(place, site)]
        if site is None or not flags or _is_masked(calls, total):
            continue
        bound = next(place for name, place in inspection.unread_flags if name == flags[0])
        yield learning_claim(
            rule,
            location_key(site) or ("targets", "ends"),
            title=f"the value of the next state is added to every reward, and {flags[0]} is never "
            "read",
            explanation="The target is a reward plus a network's value of the next state. When "
            f"an episode has ended, there is none. {flags[0]} is assigned in line "
            f"{bound.line}.",
            culprit=at_call(total, evidence),
            step=len(evidence.losses) - 1,
            severity="warning" if _is_best(calls, value) else "info",
            weight=confidence(0.7, 0.3),
            notes=[(flags[0], f"{bound.place}: {bound.code}")],
            fix=f"multiply that value by 1 - {flags[0]}",
            standing=WIRED,
        )
        return


def _swapped(rule: Rule, evidence: Evidence, line: SourceSpan) -> Claim:
    return learning_claim(
        rule,
        location_key(line) or ("targets", "ends"),
        title="terminated and truncated are swapped when unpacked",
        explanation="An environment's step returns observation, reward, terminated, truncated "
        "and info. With these names, ends of episodes are taken for time limits: the value "
        "of a state that does not exist goes into the target.",
        culprit=Culprit(kind="op", location=line),
        step=len(evidence.losses) - 1,
        weight=confidence(0.9, 0.5),
        fix="observation, reward, terminated, truncated, info = env.step(action)",
        standing=WIRED,
    )


def _beside(place: SourceSpan, site: SourceSpan | None) -> bool:
    """In the same function of the same file; or a field of what that takes apart, which is declared
    in the module."""
    if site is None or place.file != site.file:
        return False
    return place.function in (site.function, "<module>")


def _is_masked(calls: StepCalls, total: CallFacts) -> bool:
    """Something on the way from the network to the target is multiplied by a flag, chosen by one,
    or written over in places."""
    behind, _ = calls.behind(total, stop=LAYERS)
    return any(
        made.name in _REPLACING or made.notes.product.ones is not None or made.notes.overwritten
        for made in (calls.calls[index] for index in behind)
    )


def _is_best(calls: StepCalls, value: ArgumentFacts) -> bool:
    """The best of all actions, as in Q-learning: its tasks end."""
    made = calls.maker(value)
    behind = calls.behind(made, stop=LAYERS)[0] if made is not None else set()
    return any(calls.calls[index].name in _MAXIMA for index in behind)
