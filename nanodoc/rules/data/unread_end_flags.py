"""## What it checks
Regressions whose target is a reward plus a network's value of the next state, as in Q-learning and
for critics. nanodoc runs the step again with the next states of other samples. Reported if the
target of every sample whose episode ends changes with its next state, and a variable of the user's
holds a 1 for such samples and a 0 for all whose next state is the state of another sample. An info
if the rewards of these samples are like the others', or if the value is not the best of several
actions: such episodes may end only by a time limit.

Also, as an info, a line that unpacks the result of Gymnasium's `env.step` with `truncated` before
`terminated`, if the function reads the second one separately.

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
from nanodoc.facts.bootstrapped import reads_next_states
from nanodoc.facts.calls import ArgumentFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import LAYERS

_MAXIMA = ("max", "amax", "argmax")
_MANY = 8  # samples that end: fewer may be marked by chance


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
    found, seen = reads_next_states(calls), inspection.transitions
    ends = seen.unread_ends if seen is not None else {}
    if found is None or seen is None or not ends:
        return
    name = max(ends, key=lambda one: ends[one])
    known = name in seen.paid_apart and _is_best(calls, found.value)
    yield learning_claim(
        rule,
        location_key(found.total.site) or ("targets", "ends"),
        title=f"the value of the next state is added to every reward, also where {name} is 1",
        explanation="The target is a reward plus a network's value of the next state. When "
        f"an episode has ended, there is none. The targets of all {ends[name]} samples with a 1 "
        f"in {name} change with their next state; none of these is the state of another sample.",
        culprit=at_call(found.total, evidence),
        step=len(evidence.losses) - 1,
        severity="warning" if known else "info",
        weight=confidence(0.7, 0.5 if ends[name] >= _MANY else 0.2),
        notes=[
            ("ends that read the next state", f"{seen.read_ending} of {seen.ending}"),
            ("others", f"{seen.read_going_on} of {seen.going_on}"),
        ],
        fix=f"multiply that value by 1 - {name}",
        standing=WIRED,
    )


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
        severity="info",  # the names alone say it
        weight=confidence(0.9, 0.5),
        fix="observation, reward, terminated, truncated, info = env.step(action)",
        standing=WIRED,
    )


def _is_best(calls: StepCalls, value: ArgumentFacts) -> bool:
    """The best of all actions, as in Q-learning: its tasks end."""
    made = calls.maker(value)
    behind = calls.behind(made, stop=LAYERS)[0] if made is not None else set()
    return any(calls.calls[index].name in _MAXIMA for index in behind)
