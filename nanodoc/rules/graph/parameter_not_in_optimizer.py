"""## What it checks
Trainable parameters that get gradients but that no optimizer holds and nothing else changes during
the run. This includes parameters of other modules that the loss function uses, and single numbers
that require a gradient and belong to no module. If all of them were loaded from a checkpoint during
build(), this is only information: leaving a pretrained part out of the optimizer is a common way to
keep it.

## Why it matters
They keep their initial values. The loss still falls, as far as the rest of the model manages
without them.

## Example
    optimizer = torch.optim.AdamW(model.encoder.parameters())      # and the head?

## Fix
Pass them to the optimizer, or freeze them with requires_grad_(False). Layers (such as adapters)
added to a model after its optimizer was created are in no optimizer: create the optimizer last.

## See also
ND507 stale-optimizer, ND514 unregistered-module
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import OwnershipFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import count, effects
from nanodoc.rules.graph.cut_claims import names
from nanodoc.rules.graph.owners import (
    is_replaced,
    meant_for,
)
from nanodoc.vocabulary.calls import LAYERS


@rule(
    "ND506",
    "parameter-not-in-optimizer",
    "critical",
    "a trainable parameter that no optimizer holds",
    needs=("ownership",),
    preflight="optimizer",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.ownership
    if facts is None or not facts.optimizers or is_replaced(facts):
        return
    missing = facts.neglected
    if not missing:
        yield from _of_no_module(rule, evidence, facts)
        return
    first = missing[0]
    before = first.optimizer_before if all(p.optimizer_before for p in missing) else None
    given_twice = facts.twice_held
    where = (
        before
        or (meant_for(facts) if given_twice else None)
        or _wrong_optimizer(facts)
        or first.registered_at
        or facts.optimizers[0]
    )
    # a backbone from a checkpoint that the optimizer was not given is a common way to fine-tune the
    # rest
    loaded = all(p.loaded for p in missing)
    tops = list(dict.fromkeys(p.module or p.name for p in missing))
    yield Claim(
        root=("owner", "missing"),
        specificity=Specificity.FAMILY,
        stage=Stage.OWNERSHIP,
        finding=rule.finding(
            severity="info" if loaded else "critical",
            confidence=confidence(0.7, 0.4 if facts.steps > 1 else 0.0, 0.3 if where else 0.0),
            title=f"{count(len(missing), 'trainable parameter')} "
            f"{'is' if len(missing) == 1 else 'are'} in no optimizer: "
            f"{names([p.name for p in missing])}",
            explanation=f"They get gradients (norm {first.gradient:.3g} for {first.name}) and "
            f"nothing updates them, so {names(tops)} stay{'s' if len(tops) == 1 else ''} at "
            f"{_where_they_stay(len(tops), loaded=loaded)}."
            + (" They were created after the optimizer." if before else "")
            + (" Two optimizers hold the same parameters instead." if given_twice else ""),
            culprit=Culprit(
                kind="parameter",
                module=first.module or None,
                module_type=first.module_type or None,
                parameter=first.name,
                location=where,
            ),
            phase="setup",
            step=None,
            evidence=tuple((p.name, f"gradient norm {p.gradient:.3g}") for p in missing[:6]),
            effects=effects(evidence),
            fixes=(
                Fix(
                    title="create the optimizer after them"
                    if before
                    else f"pass {names([p.name for p in missing])} to the optimizer, or set "
                    "requires_grad=False if they should stay fixed",
                    confidence="likely",
                ),
            ),
        ),
    )


def _of_no_module(rule: Rule, evidence: Evidence, facts: OwnershipFacts) -> Iterable[Claim]:
    """A single number that requires a gradient, belongs to no module and no optimizer, and that
    nothing writes to in the step, such as an unknown coefficient of an equation."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    reaching = calls.reaching_the_loss() if calls is not None else frozenset()
    loose = [
        call
        for call in (calls.calls if calls is not None else ())
        if any(_is_loose(argument) for argument in call.arguments)
    ]
    used = [call for call in loose if call.index in reaching]
    written = any(call.in_place and _is_loose(call.arguments[0]) for call in loose)
    # a bias of one value is a layer's, of a network that was not found
    of_layers = any(call.name in LAYERS for call in loose)
    if not used or written or of_layers or facts.numbers:
        return
    first = used[0]
    yield Claim(
        root=("owner", "loose"),
        specificity=Specificity.FAMILY,
        stage=Stage.OWNERSHIP,
        finding=rule.finding(
            severity="warning",
            confidence=confidence(0.7, 0.4 if facts.steps > 1 else 0.0),
            title="a number that requires a gradient is in no optimizer",
            explanation=f"The loss uses it through {first.name} at "
            f"{first.site.place if first.site is not None else 'a call'}. It belongs to no "
            "module either, and nothing writes to it in the step: it keeps its initial value.",
            culprit=Culprit(
                kind="optimizer", op=first.name, location=_wrong_optimizer(facts) or first.site
            ),
            phase="setup",
            step=None,
            evidence=(("used at", first.site.place if first.site is not None else ""),),
            effects=effects(evidence),
            fixes=(
                Fix(
                    title="pass it to the optimizer (deepxde: external_trainable_variables), or "
                    "set requires_grad=False if it should stay fixed",
                    confidence="likely",
                ),
            ),
        ),
    )


def _is_loose(argument: ArgumentFacts) -> bool:
    made = argument.made_by is not None or argument.leaf is not None
    return argument.requires_grad and not made and math.prod(argument.shape) == 1


def _wrong_optimizer(facts: OwnershipFacts) -> SourceSpan | None:
    """The line of the only optimizer, or of the only one that holds nothing but what got no
    gradient: it was given the parameters of something else."""
    if len(facts.optimizers) == 1:
        return facts.optimizers[0]
    idle = [made for made, idle in zip(facts.optimizers, facts.idle, strict=False) if idle]
    return idle[0] if len(idle) == 1 else None


def _where_they_stay(layers: int, *, loaded: bool) -> str:
    if loaded:
        return "the loaded values"
    return "its initial values" if layers == 1 else "their initial values"
