"""ND402, ND403, ND404 and ND407: what the loss scale went through, and the order of GradScaler
calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Finding, Fix, Remedy
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.amp import (
    BACKWARD_AFTER_UNSCALE,
    CLIPPED_SCALED,
    FRESH_SCALER,
    NEVER_SCALED,
    SCALE_DISCARDED,
    STEPPED_SCALED,
    UPDATE_BETWEEN,
    AmpFacts,
    ScalerCall,
    ScalerMisuse,
)
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.amp import scaler_docs as docs
from nanodoc.rules.base import birth_claim, count
from nanodoc.rules.crash.failures import failure_claim
from nanodoc.rules.forward.overflow import half_fixes

# After the calibration, GradScaler's documentation expects a skip once every few hundred or
# thousand steps.
_STREAK = 5
_AFTER = "Skips in the first steps are the scale's calibration; these came after it."


# -- ND402, ND407 ----------------------------------------------------------------------------------


def _collapsing_scale(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.amp_facts
    if (
        facts is None
        or not facts.steps
        or evidence.births
        or evidence.leaves
        or evidence.failure is not None
    ):
        return
    began, length = (
        facts.longest_streak
        if facts.longest_streak[1]
        else (facts.steps[0].step, facts.calibration)
    )
    lowest = min(facts.steps, key=lambda step: step.scale)
    if not facts.skipped or (
        facts.longest_streak[1] <= _STREAK and not lowest.scale < min(1.0, facts.steps[0].scale)
    ):
        return
    scales = {step.step: step.scale for step in facts.steps}
    finite = [skip for skip in facts.retried if skip.finite_unscaled]
    why = (
        "Run again without the scale, a skipped step is finite: the scale grows faster than it "
        "should, or is set by hand."
        if finite
        else ""
    )
    yield Claim(
        root=("scaler",),
        specificity=Specificity.FALLBACK,
        stage=Stage.PRECISION,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(
                0.6, 0.5 if length > 2 * _STREAK else 0.2, 0.3 if lowest.scale < 1 else 0.0
            ),
            title=f"the loss scale collapses: {count(length, 'step')} skipped in a row from step "
            f"{began}",
            explanation=f"{facts.story}. {_AFTER if facts.longest_streak[1] else ''} {why}".strip(),
            culprit=Culprit(kind="config", location=facts.asked_at),
            phase="unscale",
            step=began,
            evidence=(
                ("lowest scale", lowest.scale),
                ("at step", lowest.step),
                ("skipped in a row", length),
            ),
            fixes=(
                Fix(
                    title="keep growth_factor and growth_interval at their defaults (2.0, 2000), "
                    "and don't set the scale by hand",
                    confidence="maybe",
                ),
                Fix(
                    title="begin with a lower loss scale",
                    confidence="maybe",
                    remedy=Remedy(kind="loss-scale", value=scales.get(began)),
                ),
            )
            if finite
            else (),
        ),
    )


def _persistent_overflow(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.amp_facts
    if (
        facts is None
        or evidence.trip is None
        or len(facts.skipped) < 2
        or not any(not one.finite_unscaled for one in facts.retried)
    ):
        return
    always = len(facts.skipped) == len(facts.steps)
    if not always and min(step.scale for step in facts.steps) >= 1:
        return
    scales = [step.scale for step in facts.steps]
    for birth in evidence.births:
        where = ", ".join(evidence.trip.bad_parameters[:3])
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{'every step' if always else 'step after step'} overflows at every loss scale: "
            f"{birth.op.short} gives a non-finite gradient",
            explanation=f"{facts.story}, and the gradients of {where} are not finite without any scale "
            "either. The scaler skips the step each time, so nothing is learned.",
            exact=0.8,
            specificity=Specificity.FAMILY,
            extra=[
                ("loss scale at first", scales[0]),
                ("loss scale at last", scales[-1]),
                ("skipped steps", len(facts.skipped)),
            ],
            fixes=half_fixes(birth.site),
        )


# -- ND403 -----------------------------------------------------------------------------------------


def _clip_before_unscale(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for misuse in _misuses(evidence, CLIPPED_SCALED):
        if misuse.clip == "written by hand":
            numbers = (
                "The gradients are changed by something other than a constant factor, and divided "
                "by the scale only afterwards."
            )
        else:
            what = "norm" if misuse.clip == "norm" else "largest element"
            scale, norm, limit = misuse.scale or 1.0, misuse.norm or 0.0, misuse.limit or 0.0
            numbers = (
                f"The {what} seen here is {norm:.4g}; divided by the loss scale of {scale:g} it "
                f"is {norm / scale:.3g}. What the limit of {limit:g} leaves is divided by the "
                f"scale too, so the optimizer gets gradients of at most {limit / scale:.3g}."
            )
        yield _misuse_claim(
            rule,
            evidence,
            misuse,
            title="gradients are clipped while they are still multiplied by the loss scale",
            explanation=numbers,
            extra=[(f"gradient {misuse.clip}, scaled", misuse.norm), ("limit", misuse.limit)],
            fix=Fix(
                title="unscale the gradients first",
                patch="scaler.unscale_(optimizer)",
                confidence="likely",
                remedy=Remedy(kind="unscale-first"),
            ),
        )


# -- ND404 -----------------------------------------------------------------------------------------


def _scaler_call_order(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if evidence.failure is not None and evidence.amp_facts is not None:
        for message, explain in _FAILURES.items():
            if message in evidence.failure.message:
                yield explain(rule, evidence, evidence.amp_facts)
                return
    for kind, (title, explanation, fix) in _ORDERS.items():
        for misuse in _misuses(evidence, kind):
            yield _misuse_claim(
                rule, evidence, misuse, title=title, explanation=explanation, fix=fix
            )


_ORDERS: dict[str, tuple[str, str, Fix]] = {
    STEPPED_SCALED: (
        "the optimizer steps on gradients that are still multiplied by the loss scale",
        "The loss was scaled before backward and nothing has unscaled the gradients since, so "
        "every update is too large by the scale, and a step with non-finite gradients is not "
        "skipped.",
        Fix(title="let the scaler step", patch="scaler.step(optimizer)", confidence="likely"),
    ),
    NEVER_SCALED: (
        "backward() runs on a loss that was not scaled, and the scaler divides its gradients by "
        "the scale",
        "The scaler unscales what was never scaled, so the updates are too small by the scale "
        "(Adam hides that until its eps matters), and small gradients underflow in half precision "
        "all the same.",
        Fix(title="scale this loss", patch="scaler.scale(loss).backward()", confidence="likely"),
    ),
    SCALE_DISCARDED: (
        "the scaled loss is thrown away: backward() runs on the unscaled one",
        "`scaler.scale(loss)` returns a new tensor and leaves `loss` as it is. The scaler then "
        "divides gradients by a scale that they never had.",
        Fix(
            title="differentiate what scale() returns",
            patch="scaler.scale(loss).backward()",
            confidence="likely",
        ),
    ),
    BACKWARD_AFTER_UNSCALE: (
        "unscale_() comes before a backward() that adds to the same gradients",
        "Gradients that were already divided by the scale get scaled ones added to them: the "
        "later backward weighs as much as the scale is large.",
        Fix(
            title="call unscale_() after the last backward() before the optimizer's step",
            confidence="likely",
        ),
    ),
    UPDATE_BETWEEN: (
        "update() may change the scale between backward() and step()",
        "Gradients that were multiplied by one scale are divided by another whenever update() "
        "grows or lowers it in between.",
        Fix(title="call update() once, when every optimizer has stepped", confidence="likely"),
    ),
    FRESH_SCALER: (
        "a new GradScaler is made in every step, so the loss scale never adapts",
        "What update() learns of overflows is gone with the scaler: each step begins at the "
        "initial scale again.",
        Fix(title="make the GradScaler once, before the loop", confidence="likely"),
    ),
}


def _misuses(evidence: Evidence, kind: str) -> list[ScalerMisuse]:
    facts = evidence.amp_facts
    return [misuse for misuse in facts.misuses if misuse.kind == kind] if facts is not None else []


def _misuse_claim(
    rule: Rule,
    evidence: Evidence,
    misuse: ScalerMisuse,
    *,
    title: str,
    explanation: str,
    fix: Fix,
    extra: Iterable[tuple[str, object]] = (),
) -> Claim:
    facts = evidence.amp_facts
    assert facts is not None
    place, other = misuse.place, misuse.other
    blamed = other if misuse.kind == BACKWARD_AFTER_UNSCALE and other is not None else place
    mild = misuse.kind == UPDATE_BETWEEN or (misuse.kind == FRESH_SCALER and not facts.skipped)
    beside = other if blamed is place else place
    related = (
        [("the other call", f"{beside.file}:{beside.line}: {beside.code.splitlines()[0]}")]
        if beside is not None and beside != blamed
        else []
    )
    return Claim(
        root=("scaler-call", misuse.kind),
        specificity=Specificity.FAMILY,
        stage=Stage.WEIGHTS,  # a wrong order of calls explains whatever values it leads to
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity="warning" if mild else rule.severity,
            confidence=confidence(
                0.6,
                0.3 if blamed is not None else 0.0,
                0.6 if misuse.steps > 1 else 0.2,
                0.5 if misuse.norm is not None else 0.0,
            ),
            title=title,
            explanation=explanation,
            culprit=Culprit(kind="op", location=blamed),
            phase="backward"
            if misuse.kind in (NEVER_SCALED, SCALE_DISCARDED)
            else "unscale"
            if misuse.kind == CLIPPED_SCALED
            else "optimizer",
            step=misuse.first_step,
            evidence=(*extra, ("loss scale", misuse.scale), ("steps", misuse.steps), *related),
            fixes=(fix,),
        ),
    )


# -- ND404 from what GradScaler raises -------------------------------------------------------------


def _earlier(facts: AmpFacts, evidence: Evidence, kind: str) -> ScalerCall | None:
    """The latest call of this kind before the one that raised."""
    calls = [call for call in facts.calls if call.kind == kind]
    here = evidence.failure.frames[-1] if evidence.failure and evidence.failure.frames else None
    if (
        calls
        and here is not None
        and calls[-1].place == here
        and calls[-1].step == evidence.failure_step
    ):
        calls = calls[:-1]
    return calls[-1] if calls else None


def _without_update(rule: Rule, evidence: Evidence, facts: AmpFacts) -> Claim:
    """unscale_() or step() once more than the scaler allows between two updates."""
    failure = evidence.failure
    assert failure is not None
    step = _earlier(facts, evidence, "step")
    same_step = [call for call in facts.calls if call.step == evidence.failure_step]
    repeated = [call for call in same_step if call.kind in ("unscale", "step")]
    if (
        step is not None
        and step.step != evidence.failure_step
        and not any(call.kind == "update" for call in facts.calls)
    ):
        return _call_claim(
            rule,
            evidence,
            step.place,
            title="scaler.update() is never called",
            explanation="Every iteration ends with update(): it adapts the scale and makes the scaler "
            "ready for the next step. None was called, and the next iteration raises "
            f'"{_first_line(failure.message)}".',
            fix=Fix(
                title="call update() after the last step() of the iteration",
                patch="scaler.update()",
                confidence="likely",
            ),
        )
    calls = ", ".join(
        f"{call.kind} (line {call.place.line})" for call in repeated if call.place is not None
    )
    return _call_claim(
        rule,
        evidence,
        failure.frames[-1] if failure.frames else None,
        title="the scaler's calls come twice, or in a wrong order, between two updates",
        explanation=f"In one iteration: {calls or 'see the traceback'}. For one optimizer it is "
        "unscale_() at most once, then step(), then update().",
        fix=Fix(
            title="call unscale_() once, after the last backward() and before anything reads or "
            "clips the gradients",
            confidence="likely",
        ),
    )


def _without_scale(rule: Rule, evidence: Evidence, facts: AmpFacts) -> Claim:
    failure = evidence.failure
    assert failure is not None
    backward = _earlier(facts, evidence, "backward")
    return _call_claim(
        rule,
        evidence,
        backward.place if backward is not None else failure.frames[-1] if failure.frames else None,
        title="the loss is never scaled",
        explanation="backward() ran on the loss itself, and the scaler has nothing to unscale by: "
        f'"{_first_line(failure.message)}".',
        fix=Fix(title="scale the loss", patch="scaler.scale(loss).backward()", confidence="likely"),
    )


def _update_alone(rule: Rule, evidence: Evidence, facts: AmpFacts) -> Claim:
    failure = evidence.failure
    assert failure is not None
    direct = [
        call
        for call in facts.calls
        if call.kind == "direct-step" and call.step == evidence.failure_step
    ]
    if direct:
        return _call_claim(
            rule,
            evidence,
            direct[-1].place,
            title="the optimizer steps by itself instead of through the scaler",
            explanation="optimizer.step() moves the weights by gradients that are still scaled and checks "
            "none for inf, and update() finds that nothing was checked.",
            fix=Fix(
                title="let the scaler step", patch="scaler.step(optimizer)", confidence="likely"
            ),
        )
    return _call_claim(
        rule,
        evidence,
        failure.frames[-1] if failure.frames else None,
        title="update() is called on an iteration that stepped no optimizer",
        explanation="The scaler adapts to what step() or unscale_() found in the gradients, and neither "
        "has run since the last update().",
        fix=Fix(title="call update() only where step() was called", confidence="likely"),
    )


_FAILURES: dict[str, Callable[[Rule, Evidence, AmpFacts], Claim]] = {
    "unscale_() has already been called on this optimizer": _without_update,
    "unscale_() is being called after step()": _without_update,
    "step() has already been called since the last update()": _without_update,
    "but _scale is None": _without_scale,
    "No inf checks were recorded prior to update": _update_alone,
}


def _call_claim(
    rule: Rule,
    evidence: Evidence,
    place: SourceSpan | None,
    *,
    title: str,
    explanation: str,
    fix: Fix,
) -> Claim:
    """Like `failure_claim`, at the call that is to blame instead of the one that raised."""
    claim = failure_claim(
        rule,
        evidence,
        title=title,
        explanation=explanation,
        fixes=[fix],
        specificity=Specificity.SPECIAL,
    )
    if place is None:
        return claim
    finding = replace(
        claim.finding,
        culprit=Culprit(kind="op", location=place),
        confidence=confidence(0.8, 0.5),
        phase="optimizer",
    )
    return replace(claim, finding=finding)


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else ""


RULES = (
    Rule(
        code="ND402",
        name="collapsing-scale",
        severity="critical",
        summary="step after step is skipped after the scale had calibrated",
        check=_collapsing_scale,
        doc=docs.COLLAPSING,
    ),
    Rule(
        code="ND403",
        name="clip-before-unscale",
        severity="critical",
        summary="gradients clipped while still multiplied by the loss scale",
        check=_clip_before_unscale,
        doc=docs.CLIP,
    ),
    Rule(
        code="ND404",
        name="scaler-call-order",
        severity="critical",
        summary="GradScaler calls missing, repeated or in a wrong order",
        check=_scaler_call_order,
        doc=docs.ORDER,
    ),
    Rule(
        code="ND407",
        name="persistent-overflow",
        severity="critical",
        summary="gradients that are non-finite at every loss scale",
        check=_persistent_overflow,
        doc=docs.PERSISTENT,
    ),
)
