"""## What it checks
Before the first step: parameters with a NaN or inf, buffers with a NaN, and parameters made by
torch.empty that nothing wrote to during build(). During a step: memory from torch.empty that is
read before it is written.

## Why it matters
torch.empty holds whatever was there before: zeros today, 1e38 or NaN tomorrow, differently on every
machine. The loss may stay finite while one layer is dead from the start.

## Example
    self.weight = nn.Parameter(torch.empty(n, m))        # and no nn.init call

## Fix
Initialise it: nn.init.xavier_uniform_(self.weight), or torch.zeros / torch.randn.

## Options
A parameter that was handed to NumPy or to C code during build() counts as written. Values that
merely look harmless do not: they are what the memory held before.

## See also
ND616 optimizer-made-nan
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.remedy import Initialise
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import LeafRoot, ParameterFacts
from nanodoc.rules.base import count, effects, link, replay_row, values


@rule(
    "ND209",
    "uninitialised-parameter",
    "critical",
    "a parameter or buffer is non-finite, or was never written, before step 0",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    late = [sick for sick in evidence.sick_parameters if sick.trained and sick.facts.nonfinite]
    if late:
        yield _trained_before(rule, evidence, late)
        return
    for position, sick in enumerate(evidence.sick_parameters):
        yield _before_start(
            rule,
            sick,
            position,
            tuple(
                parameter.name
                for parameter in evidence.sick_parameters
                if parameter.kind == "parameter"
            ),
        )
    hurt = {name for optimizer in evidence.optimizers for name in optimizer.parameters}
    for leaf in evidence.leaves:
        if leaf.kind == "uninitialised" or (
            leaf.kind in ("parameter", "buffer") and leaf.name not in hurt
        ):
            yield _during_step(rule, evidence, leaf)


def _trained_before(rule: Rule, evidence: Evidence, sick: list[ParameterFacts]) -> Claim:
    """Steps that nobody watched made them so: their initial values are not to blame."""
    site = next((made for made in evidence.optimizer_sites if made is not None), None)
    first = sick[0]
    return Claim(
        root=("sick", first.name),
        specificity=Specificity.SPECIAL,
        stage=Stage.WEIGHTS,
        finding=rule.finding(
            confidence=confidence(0.6),
            title=f"{count(len(sick), 'parameter')} held non-finite values when watching began",
            explanation="The loop had already trained in iterations that were not watched, "
            "because it first ran for a long time without a backward pass. One of those "
            f"updates made {first.name} non-finite.",
            culprit=Culprit(
                kind="optimizer",
                module=first.module,
                module_type=first.module_type,
                parameter=first.name,
                location=site,
            ),
            phase="optimizer",
            step=None,
            evidence=tuple((p.name, f"{p.facts.nonfinite} of {p.facts.numel}") for p in sick[:4]),
            fixes=(
                Fix(
                    title="start training within the loop's first iterations (a smaller warm-up "
                    "of the replay buffer), so that the first step is watched",
                    confidence="maybe",
                ),
            ),
        ),
    )


def _before_start(rule: Rule, sick: ParameterFacts, position: int, every: tuple[str, ...]) -> Claim:
    facts = sick.facts
    if facts.nonfinite:
        what = f"holds {facts.nonfinite} non-finite values of {facts.numel} before the first step"
    else:
        what = "was never written to: it holds what torch.empty left in memory"
    why = (
        " Its memory came from torch.empty and nothing filled it during build()."
        if sick.never_written
        else ""
    )
    return Claim(
        root=("sick", sick.name),
        specificity=Specificity.SPECIAL,
        stage=Stage.WEIGHTS,
        position=position,
        finding=rule.finding(
            confidence=confidence(
                0.9 if facts.nonfinite else 0.4, 0.9 if sick.never_written else 0.0
            ),
            title=f"{sick.kind} {sick.name} {what}",
            explanation=f"{sick.name} ({facts.dtype}, shape {list(facts.shape)}) has {facts.nan} "
            f"NaN, {facts.inf} inf and finite values "
            f"{values(facts.minimum, facts.maximum)}.{why}",
            culprit=Culprit(
                kind="parameter",
                module=sick.module,
                module_type=sick.module_type,
                parameter=sick.name,
                location=sick.registered_at,
            ),
            phase="setup",
            step=None,
            evidence=(
                ("NaN", facts.nan),
                ("inf", facts.inf),
                ("minimum", facts.minimum),
                ("maximum", facts.maximum),
                ("never written", sick.never_written),
            ),
            fixes=(_initialised(sick.name, every),),
        ),
    )


def _initialised(name: str, every: tuple[str, ...]) -> Fix:
    """Tried with all sick parameters initialised: one alone would not make the step healthy."""
    remedy = Initialise(parameters=every) if every else None
    return Fix(
        title=f"initialise {name} (torch.nn.init, or torch.zeros instead of torch.empty)",
        confidence="likely",
        remedy=remedy,
    )


def _during_step(rule: Rule, evidence: Evidence, leaf: LeafRoot) -> Claim:
    consumer = leaf.consumer
    raw = leaf.kind == "uninitialised"
    title = (
        "values from torch.empty are used before anything is written there"
        if raw
        else f"{leaf.kind} {leaf.name} is non-finite when the step begins"
    )
    return Claim(
        root=("leaf", leaf.name),
        specificity=Specificity.FAMILY,
        position=consumer.index if consumer else 0,
        finding=rule.finding(
            confidence=confidence(0.5 if evidence.reproduced == "bitwise" else 0.2, 0.6),
            title=title,
            explanation=f"{title[0].upper()}{title[1:]}, and it reaches the loss: "
            f"{leaf.facts.nan} NaN and {leaf.facts.inf} inf among {leaf.facts.numel} elements.",
            culprit=Culprit(
                kind="op" if raw else "parameter",
                op=consumer.op if consumer else None,
                module=consumer.module if consumer else None,
                module_type=consumer.module_type if consumer else None,
                parameter=None if raw else leaf.name,
                location=consumer.location if consumer else None,
            ),
            phase="forward",
            step=evidence.trip.step if evidence.trip else evidence.failure_step,
            evidence=(("NaN", leaf.facts.nan), ("inf", leaf.facts.inf)),
            chain=tuple(link(op) for op in leaf.chain),
            effects=effects(evidence),
            experiments=replay_row(evidence),
            fixes=(
                Fix(
                    title="write every element before it is read (torch.zeros instead of "
                    "torch.empty)",
                    confidence="likely",
                ),
            )
            if raw
            else (),
        ),
    )
