"""How ND601 and ND606 tell of a run that diverged: its course, the line that set the rate, and what
helps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.remedy import Clip, LowerRate
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.calls import CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import FarInputs, Growth, RerunFacts, Stretch, TurnedBetas
from nanodoc.rules.base import LARGE_GRADIENTS, count, effects, link, replay_row
from nanodoc.rules.learning.input_scale import inputs_to_blame, of_the_inputs, standardise
from nanodoc.rules.learning.written_rate import of_the_scale
from nanodoc.rules.rewrite import number_in_call

_FOR_MEANS = 1e-4  # a learning rate that SGD has for the mean of a loss, or a higher one
_MANY = 1_000  # elements
WEIGHTS_GREW = 5.0
"""How far the weights of a finite run must have grown: its loss may rise for many reasons."""


def diverged_claim(
    rule: Rule,
    evidence: Evidence,
    growth: Growth,
    course: RerunFacts | None,
    overflow: tuple[Birth, float] | None,
    *,
    broke: bool,
) -> Claim:
    losses = [loss for loss in evidence.losses if math.isfinite(loss)]
    norms = [norm for norm in evidence.grad_norms if math.isfinite(norm)]
    first, rate = losses[0] if losses else -math.inf, _rate(evidence, growth)
    summed = _summed(evidence, course)
    site, raised = _site(evidence, growth, summed)
    birth = overflow[0] if overflow else next(iter(evidence.births), None)
    far = inputs_to_blame(evidence)
    step = evidence.trip.step if evidence.trip else evidence.failure_step
    plain = not (far or summed or _betas(evidence)) and rule.code != "ND601"
    return Claim(
        root=("optimizer", 0),  # however many ops overflowed, the updates are the one root
        # a call of the loop that makes them too large says why
        specificity=Specificity.SPECIAL,
        position=birth.site.index if birth else 0,
        finding=rule.finding(
            confidence=confidence(
                0.5 if evidence.reproduced == "bitwise" or not broke else 0.2,
                _tried(course),
                0.5 if growth.loss and growth.loss > 10 else 0.2,
                0.4 if len(losses) > 3 else 0.0,
            ),
            title=_title(rule, growth, losses, broke=broke),
            explanation=_explanation(
                growth,
                norms,
                birth,
                rate,
                raised=raised,
                broken=len(norms) < len(evidence.grad_norms),
            )
            + _of_the_sum(summed, site)
            + (_of_the_rate(growth, course, rate) if plain else "")
            + (f" {of_the_inputs(far)}" if far is not None else "")
            + _of_the_betas(evidence),
            culprit=_culprit(birth, far, site),
            phase="optimizer",
            step=step if step is not None else len(evidence.losses) - 1,
            evidence=(
                *_course(growth, losses, norms, rate),
                *((("overflowed at", _place(birth)),) if birth else ()),
                *((("largest value there", overflow[1]),) if overflow else ()),
            ),
            chain=tuple(link(op) for op in birth.chain) if birth else (),
            effects=effects(evidence),
            experiments=replay_row(evidence),
            fixes=(standardise(far),)
            if far is not None
            else _turned(evidence)
            or tuple(_fixes(growth, course, rate, site, raised=raised, first=first)),
        ),
    )


def _culprit(birth: Birth | None, far: FarInputs | None, site: SourceSpan | None) -> Culprit:
    """The updates, with the op that finally overflowed; or the inputs that make them too large."""
    where = birth.site if birth is not None else None
    place = site or (where.site if where is not None else None)
    op = where.op if where is not None else None
    if far is not None:
        return Culprit(kind="data", batch_path=far.path, op=op, location=place)
    return Culprit(
        kind="optimizer",
        op=op,
        module=where.module if where is not None else None,
        module_type=where.module_type if where is not None else None,
        location=place,
    )


def _tried(course: RerunFacts | None) -> float:
    """What the stretches say for the steps as the cause: with smaller ones it learns, or does not
    fail at least."""
    if course is not None and course.passing():
        return 0.85
    if course is not None and any(stretch.finite for stretch in course.stretches):
        return 0.5
    return 0.6 if course is None else 0.3


def _title(rule: Rule, growth: Growth, losses: list[float], *, broke: bool) -> str:
    """What exploded, from where to where, and how it ended."""
    sizes = (
        f"the loss grew from {losses[0]:.3g} to {losses[-1]:.3g}"
        if len(losses) > 1 and (growth.loss or 3) > 2
        else _what_grew(growth)
    )
    ended = "before the step broke" if broke else "and did not come back"
    return (
        f"gradients exploded: {sizes} {ended}"
        if rule.code == "ND601"
        else f"the run diverged: {sizes} {ended}"
    )


def _course(
    growth: Growth, losses: list[float], norms: list[float], rate: float | None
) -> list[tuple[str, object]]:
    """The numbers of the run's course that are known."""
    fastest = growth.fastest if (growth.fastest_ratio or 0) > 2 else None
    found: list[tuple[str, object]] = [
        ("loss at the start", losses[0] if losses else None),
        ("last finite loss", losses[-1] if losses else None),
        ("growing since step", growth.began),
        ("learning rate", rate),
        ("largest gradient norm", max(norms, default=None)),
        ("weights grew", f"{growth.weights:.3g}-fold" if growth.weights else None),
        ("largest growth", f"{fastest} {growth.fastest_ratio:.3g}-fold" if fastest else None),
    ]
    return [(label, value) for label, value in found if value is not None]


def _rate(evidence: Evidence, growth: Growth) -> float | None:
    """The highest learning rate of the run; the first where the highest is unknown."""
    if growth.rate_highest is not None:
        return growth.rate_highest
    return next(iter(evidence.learning_rates), None)


def _summed(evidence: Evidence, course: RerunFacts | None) -> CallFacts | None:
    """The only loss, where it is a sum over many elements of a batch and its size is what the steps
    are too large by: they hold with the gradient norm clipped, too, which says nothing to Adam."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    norm = next(iter(evidence.grad_norms), 0.0)
    rate = next(iter(evidence.learning_rates), 0.0)
    if calls is None or len(calls.losses) != 1 or course is None or evidence.scaler:
        return None
    # whoever has a smaller rate has thought of the sum
    if not LARGE_GRADIENTS <= norm < math.inf or rate < _FOR_MEANS:
        return None
    if not any(stretch.clip is not None and stretch.passes for stretch in course.stretches):
        return None
    loss = calls.calls[calls.losses[0]]
    summed = loss.reduction == "sum"
    shape = loss.arguments[0].shape if loss.arguments else ()
    many = len(shape) > 1 and shape[0] > 1 and math.prod(shape) >= _MANY
    return loss if summed and many else None


def _of_the_sum(summed: CallFacts | None, site: SourceSpan | None) -> str:
    if summed is None or site is None or site != summed.site:
        return ""
    elements = math.prod(summed.arguments[0].shape)
    return (
        f" The loss is a sum over {elements} elements: with the mean, each step would be that "
        "many times smaller."
    )


def _betas(evidence: Evidence) -> TurnedBetas | None:
    return evidence.pattern.betas if evidence.pattern is not None else None


def _of_the_betas(evidence: Evidence) -> str:
    if (betas := _betas(evidence)) is None:
        return ""
    return (
        f" The betas are {betas.first:g} and {betas.second:g}: with {betas.second:g} and "
        f"{betas.first:g} the same steps do not diverge."
    )


def _turned(evidence: Evidence) -> tuple[Fix, ...]:
    if (betas := _betas(evidence)) is None:
        return ()
    return (
        Fix(
            title=f"betas=({betas.second:g}, {betas.first:g})",
            verified=True,
            outcome=f"with them the same steps end at loss {betas.last_loss:.3g}",
        ),
    )


def _of_the_rate(growth: Growth, course: RerunFacts | None, rate: float | None) -> str:
    """Where smaller steps keep the run from diverging, and nothing else is known to make them too
    large."""
    factor = slower(course) if course is not None else None
    others = (growth.written, growth.wide, growth.scaled)
    if course is None or factor is None or rate is None or any(one is not None for one in others):
        return ""
    return (
        f" The learning rate of {rate:.3g} is too high: with {factor:g} times that, the last "
        "steps do not diverge."
    )


def _site(
    evidence: Evidence, growth: Growth, summed: CallFacts | None
) -> tuple[SourceSpan | None, bool]:
    """The line that set the learning rate: the optimizer's, or the scheduler's where it had raised
    the rate. In a step without an optimizer, the line that moves the weights."""
    if evidence.update_site is not None:
        return evidence.update_site, False
    if growth.written is not None:
        return growth.written.line, False
    if growth.wide is not None and growth.wide.line is not None:
        return growth.wide.line, False
    if inputs_to_blame(evidence) is not None:
        made = evidence.data.far_at if evidence.data is not None else None
        return made or evidence.data_site, False
    if growth.scaled is not None and growth.scaled.line is not None and not growth.raised:
        return growth.scaled.line, False
    if growth.raised and evidence.stats is not None and evidence.stats.raised_at is not None:
        return evidence.stats.raised_at, True
    if growth.raised and growth.rate_set_at is not None:
        return growth.rate_set_at, True
    scheduler = next(
        (made for made in reversed(evidence.scheduler_sites) if made is not None), None
    )
    if growth.raised and scheduler is not None:
        return scheduler, True
    if summed is not None and summed.site is not None and not growth.raised:
        return summed.site, False
    return next((at for at in evidence.rate_sites if at is not None), None), False


def _what_grew(growth: Growth) -> str:
    if growth.norm is not None and growth.norm > 10:
        return f"the gradient norm grew {growth.norm:.3g}-fold"
    if growth.weights is not None and growth.weights > 3:
        return f"the weights grew {growth.weights:.3g}-fold"
    return (
        f"{growth.fastest} grew {growth.fastest_ratio:.3g}-fold"
        if growth.fastest
        else "the loss grew"
    )


def _explanation(
    growth: Growth,
    norms: list[float],
    birth: Birth | None,
    rate: float | None,
    *,
    raised: bool,
    broken: bool,
) -> str:
    parts = []
    if growth.began is not None:
        parts.append(
            f"Since step {growth.began} the loss has been more than twice its first value."
        )
    if norms:
        began = f"was {norms[0]:.3g} at step 0 and " if norms[0] < max(norms) else ""
        broke = ", then it was not finite" if broken else ""
        parts.append(f"The gradient norm {began}reached {max(norms):.3g}{broke}.")
    if growth.weights is not None and growth.weights > WEIGHTS_GREW:
        parts.append(f"All weights together are {growth.weights:.3g} times as large as at step 0.")
    if (own := growth.written) is not None:
        parts.append(
            f"Weights that no optimizer holds, such as {own.name}, are {own.times:.3g} times as "
            f"large as at first, those of the optimizers {own.others:.3g} times: this line writes "
            "them."
        )
    if (wide := growth.wide) is not None:
        parts.append(
            f"The initial weights of {count(wide.layers, 'layer')} are wider than sqrt(2 / "
            f"fan_in), {wide.name} {wide.times:.3g} times: at {wide.width} the same steps start "
            f"at a loss of {wide.first_loss:.3g} and do not diverge."
        )
    if growth.scaled is not None and growth.scaled.line is not None and not raised:
        parts.append(of_the_scale(growth.scaled))
    if raised:
        parts.append(
            f"The schedule had raised the learning rate from {growth.rate_given:.3g} to {rate:.3g}."
        )
    if birth is not None:
        parts.append(f"{_place(birth)} is where it ended; the updates are where it began.")
    return " ".join(parts) or "The loss kept growing."


def _place(birth: Birth) -> str:
    where = birth.site.site
    return f"{birth.site.short} at {where.place}" if where else birth.site.short


def slower(course: RerunFacts) -> float | None:
    """The largest factor of the learning rate with which the steps stayed finite."""
    return max(
        (stretch.rate for stretch in course.stretches if stretch.passes and stretch.clip is None),
        default=None,
    )


def _only_finite(stretches: Sequence[Stretch], rate: float | None) -> Fix:
    """What is told where smaller steps do not fail, and do not learn for certain either."""
    best = min(stretches, key=lambda stretch: stretch.last_loss or 0.0)
    lower = f"to {rate * best.rate:.3g}" if rate is not None else f"{1 / best.rate:g}-fold"
    return Fix(
        title=f"lower the learning rate {lower}, and check what makes the first gradients large: "
        "the initial weights, the scale of inputs and targets",
        verified=False,
        outcome=f"these steps stay finite and end at loss {best.last_loss:.3g}, which does not "
        "show whether the model learns",
        confidence="maybe",
    )


def _not_cured(growth: Growth, course: RerunFacts, rate: float | None, first: float) -> Fix:
    """What is told where no smaller step learns for certain. `first`: the first loss."""
    calmer = [
        stretch
        for stretch in course.stretches
        if stretch.finite and stretch.clip is None and (stretch.last_loss or first) < first
    ]
    if calmer:
        return _only_finite(calmer, rate if growth.only_rate else None)
    # where the loss rises with every rate, its sign may be wrong
    return Fix(
        title="check the learning rate and its schedule, the sign of the loss (maximize=True), "
        "and whether gradients are ever cleared",
        confidence="maybe",
    )


def _of_what_is_written(growth: Growth) -> Fix | None:
    """Of weights that the user's own line writes, in a step or at first."""
    if growth.written is not None:
        return Fix(
            title="check what this line adds: weights that follow others are an average of both, "
            "(1 - tau) times the old ones plus tau times the others",
            confidence="likely",
        )
    if growth.wide is not None:
        return Fix(
            title=f"initialise these layers with a standard deviation of {growth.wide.width}, "
            "where fan_in counts each position of a kernel: "
            + ("nn.init.kaiming_normal_" if growth.wide.he else "torch's default initialisation"),
            verified=True,
            outcome=f"with that width the steps end at loss {growth.wide.last_loss:.3g}",
        )
    return None


def _fixes(
    growth: Growth,
    course: RerunFacts | None,
    rate: float | None,
    site: SourceSpan | None,
    *,
    raised: bool,
    first: float,
) -> list[Fix]:
    by_hand = _of_what_is_written(growth)
    if by_hand is not None:
        return [by_hand]
    if course is None:
        return [
            Fix(
                title="lower the learning rate, clip the gradient norm, or shrink the initial "
                "weights",
                confidence="likely",
            )
        ]
    if not course.passing():
        return [_not_cured(growth, course, rate, first)]
    found = []
    factor = slower(course) or 0.1
    lower = f"{rate * factor:.3g}" if rate is not None and (growth.only_rate or raised) else None
    patch = (
        number_in_call(site, "lr", lower)
        if site is not None and lower is not None and growth.only_rate
        else None
    )
    title = f"multiply every learning rate by {factor:g}"
    if lower is not None:
        title = (
            f"let the schedule raise the learning rate to no more than {lower} here"
            if raised
            else f"lower the learning rate to {lower}"
        )
    found.append(
        Fix(
            title=title,
            patch=patch,
            confidence="likely",
            remedy=LowerRate(factor=factor),
        )
    )
    clip = next((stretch.clip for stretch in course.stretches if stretch.clip is not None), None)
    if clip is not None:
        clipping = Fix(
            title=f"clip the gradient norm to {clip:g} (torch.nn.utils.clip_grad_norm_)",
            confidence="likely",
            remedy=Clip(norm=clip),
        )
        found.insert(0 if slower(course) is None else 1, clipping)
    return found
