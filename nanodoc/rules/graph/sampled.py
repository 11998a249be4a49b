"""ND501, too: a sample that carries no gradient to the mean it was drawn around."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import Standing, at_call, learning_claim
from nanodoc.vocabulary.calls import EXPANSIONS, LAYERS


def sampled_claims(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    """A draw of torch.normal around what the model computed goes on into layers and into the loss:
    what made the mean learns nothing from there. Where the sample is compared with its mean again
    (a log probability), that is how it learns."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    for call in calls.calls if calls is not None else ():
        if call.name != "normal" or not any(a.requires_grad for a in call.arguments):
            continue
        assert calls is not None
        layer = _first_layer(calls, call)
        if layer is None or call.site is None:
            continue
        yield learning_claim(
            rule,
            location_key(call.site) or ("op", call.index),
            standing=Standing(stage=Stage.WIRING, specificity=Specificity.EXACT),
            severity="warning",
            weight=confidence(0.8, 0.3 if call.arguments[0].requires_grad else 0.1),
            title="a sample passes no gradient to the mean and deviation it was drawn with",
            explanation="torch.normal and Distribution.sample() draw random values without a "
            f"gradient. The sample is passed on to {layer.module or layer.name}, so the "
            "layers that made its mean and deviation learn nothing from the rest of the "
            "network.",
            culprit=at_call(call, evidence),
            step=evidence.inspection.step if evidence.inspection is not None else None,
            notes=[("passed on to", layer.module or layer.name)],
            fix="mean + deviation * torch.randn_like(deviation), or rsample()",
        )
        return


def _first_layer(calls: StepCalls, draw: CallFacts) -> CallFacts | None:
    """The layer that the sample goes into on its way to the loss; None where there is none, or
    where the sample meets its own mean before."""
    reaching = calls.reaching_the_loss()
    mean: set[int] = set()
    waiting = [a.made_by for a in draw.arguments if a.made_by is not None]
    while waiting:  # Normal.sample() expands its mean first
        made = calls.calls[waiting.pop()]
        mean.add(made.index)
        if made.view or made.same_values or made.name in EXPANSIONS:
            waiting += [a.made_by for a in made.arguments if a.made_by is not None]
    follows, found = {draw.index}, None
    for call in calls.calls[draw.index + 1 :]:
        used = {a.made_by for a in call.arguments if a.made_by is not None}
        if not used & follows:
            continue
        if used & mean:
            return None
        if call.name in LAYERS:
            if call.index in reaching:
                found = found or call
            continue
        follows.add(call.index)
    return found
