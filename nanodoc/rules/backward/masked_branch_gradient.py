"""## What it checks
A NaN gradient at elements that the forward pass discards (where, masked_fill, a boolean index,
nan_to_num), while the loss is finite: a zero gradient is multiplied by an infinite derivative, or
by a NaN that is masked only after the op.

## Why it matters
where(c, f(x), g(x)) computes both branches, and backward runs through both: 0 · inf = NaN.

## Example
    y = torch.where(x > 0, torch.sqrt(x), 0.0)
    loss = F.huber_loss(pred, target, reduction="none")[~target.isnan()].mean()

## Fix
Make the argument harmless before the function: torch.sqrt(torch.where(x > 0, x, 1.0)) inside the
where; select the valid elements before the loss.

## See also
ND301 infinite-gradient, ND101 non-finite-input
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import OpFacts
from nanodoc.rules.backward.inputs import input_evidence, is_decomposition
from nanodoc.rules.base import birth_claim, count
from nanodoc.rules.forward.guards import guards, harmless


@rule(
    "ND302",
    "masked-branch-gradient",
    "critical",
    "the branch that `where` discards still sends 0 · inf = NaN back",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        if birth.phase != "backward" or is_decomposition(birth):
            continue
        masked = birth.masked_by is not None and birth.zero_gradient
        if not (birth.saved_nonfinite or masked):
            continue
        site = birth.site
        source = birth.source
        if birth.masked_by is not None:
            where = birth.masked_by.location
            mask = f"{birth.masked_by.short}" + (f" at {where.place}" if where else "")
        else:
            mask = "a later op"
        if source is not None and source.kind == "batch":
            title = f"{site.short} meets NaN in {source.name} that is masked only afterwards"
            text = (
                f"{source.name} holds {count(source.facts.nonfinite, 'non-finite value')}. They "
                f"are masked out of the loss after {site.short}, but its gradient there is 0 · NaN "
                "= NaN."
            )
            fixes = [
                *_without_nan(site, source.name),
                Fix(
                    title=f"select the valid elements before {site.short}, not after it",
                    confidence="likely",
                ),
            ]
        else:
            title = (
                f"{site.short} sends NaN back from elements that {mask.split(' at ')[0]} discards"
            )
            bad = sum(fact.nonfinite for fact in birth.op.outputs)
            text = (
                f"{mask} discards the elements where {site.short} is singular, so the loss is "
                "finite. Backward multiplies their zero gradient by the infinite derivative of "
                f"{site.short}: 0 · inf = NaN at {count(bad, 'element')}."
            )
            title_ = (
                f"replace the argument of {site.short} with a harmless value where it is masked, "
                f"before {site.short} (a where inside and outside)"
            )
            fixes = guards(site, title_) or [Fix(title=title_, confidence="likely")]
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=title,
            explanation=text,
            exact=1.0 if masked or source is not None else 0.7,
            specificity=Specificity.SPECIAL,
            extra=[*input_evidence(site), ("discarded by", mask)],
            fixes=fixes,
        )


def _without_nan(site: OpFacts, name: str) -> list[Fix]:
    """NaN of the batch replaced by 0 in the argument that it reaches: it is masked afterwards
    anyway."""
    at = next(
        (i for i, fact in enumerate(site.inputs) if fact.label == name and fact.nonfinite), None
    )
    return (
        []
        if at is None
        else [
            harmless(
                site,
                at,
                f"give {site.short} a harmless value where {name} is NaN, because the mask comes "
                "afterwards",
            )
        ]
    )
