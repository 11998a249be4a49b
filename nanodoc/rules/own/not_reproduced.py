"""## What it checks
A step with a non-finite loss or gradients whose replay from the same weights, batch and random
state was finite or did not show a cause, or that can't be replayed.

## Why it matters
No line can be named for certain. The possible causes are state outside the model (a global counter,
a file), a nondeterministic kernel, a compiled region that differs from eager, or faulty hardware.

## Fix
Run again with `torch.use_deterministic_algorithms(True)`; try without torch.compile; keep all state
in the model. If a script's step can't be replayed, nanodoc traces it in a second run of the script;
the report says why where it can't. `--trace-steps N` traces it while the script runs: seed the
script so that step N is the same.

## See also
ND302 masked-branch-gradient
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.untraced import NOT_REPRODUCED
from nanodoc.rules.base import effects, replay_row

_JUDGED = ("no", "bitwise", "tolerance")
_CAUSES = (
    " Causes: state outside the model and the batch, a nondeterministic op, or a compiled part "
    "that fails only when compiled."
)


@rule(
    "ND901",
    NOT_REPRODUCED,
    "critical",
    "the failing step was healthy when it was replayed",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    trip = evidence.trip
    if (
        trip is None
        or evidence.births
        or evidence.leaves
        or evidence.optimizers
        or evidence.failure is not None
        or evidence.probed
    ):
        return
    if evidence.reproduced == "no":
        text = (
            f"Step {trip.step} failed, but its replay was healthy or ran differently. "
            f"{evidence.reproduction_note}".strip()
        )
    elif evidence.reproduced == "not_run":
        text = f"Step {trip.step} failed and was not replayed. {evidence.reproduction_note}"
    elif evidence.reproduced == "as_it_ran":
        text = (
            f"Step {trip.step} failed while it was traced, but no op could be identified. "
            f"{evidence.reproduction_note}"
        )
    else:
        text = (
            f"Step {trip.step} failed and so did its replay, but no op could be identified. "
            f"{evidence.reproduction_note}"
        ).strip()
    yield Claim(
        root=("not-reproduced",),
        specificity=Specificity.FALLBACK,
        finding=rule.finding(
            # it is certain that the step went wrong; that nothing in it can be named is only as
            # sure as the replay was exact
            confidence=confidence(0.3, 0.3 if evidence.reproduced == "bitwise" else 0.0),
            title="a step failed and could not be traced to an op",
            explanation=text.strip() + (_CAUSES if evidence.reproduced in _JUDGED else ""),
            culprit=Culprit(kind="environment"),
            phase=trip.phase,
            step=trip.step,
            effects=effects(evidence),
            experiments=replay_row(evidence),
        ),
    )
