"""ND501, too: a derivative that the loss is made of, taken without a graph of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import Standing, at_call, learning_claim
from nanodoc.vocabulary.calls import LAYERS


def derivative_claims(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    """torch.autograd.grad without create_graph=True, with respect to what is no parameter, whose
    result becomes a term of the loss without going through a layer again: an attack goes through
    the model with it, and a weight between two losses is taken with respect to parameters."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    for call in calls.calls if calls is not None else ():
        if call.name != "grad" or call.requires_grad or call.site is None:
            continue
        assert calls is not None
        # a function that serves several derivatives is told what to keep by its callers
        kept = any(
            c.requires_grad and c.name == "grad" and c.site == call.site for c in calls.calls
        )
        culprit = at_call(call, evidence)
        if kept and call.asked_by is not None:
            culprit = replace(culprit, location=call.asked_by)
        parameters = any(a.parameter for a in call.arguments)
        learns = any(a.requires_grad for a in call.arguments)
        if parameters or not learns or not _is_term(calls, call):
            continue
        yield learning_claim(
            rule,
            location_key(culprit.location) or ("op", call.index),
            standing=Standing(stage=Stage.WIRING, specificity=Specificity.EXACT),
            weight=confidence(0.9),
            title="a derivative in the loss has no graph: nothing is learned from its term",
            explanation="Without create_graph=True, torch.autograd.grad returns values without a "
            "graph. The loss is computed from them, but no gradient flows back through them.",
            culprit=culprit,
            step=evidence.inspection.step if evidence.inspection is not None else None,
            fix="torch.autograd.grad(…, create_graph=True)",
        )
        return


def _is_term(calls: StepCalls, derivative: CallFacts) -> bool:
    """A loss is made of it by arithmetic alone."""
    follows = {derivative.index}
    for call in calls.calls[derivative.index + 1 :]:
        used = any(a.made_by in follows for a in call.arguments)
        if used and call.name not in LAYERS and call.name not in ("grad", "detach"):
            follows.add(call.index)
    return bool(follows & set(calls.losses))
