"""## What it checks
The order of the calls that a train_step makes on its GradScaler, its optimizers and its losses:
scale → backward → unscale_ (at most once) → clip → step → update. nanodoc reports backward() on a
loss that was not scaled, a scaled loss that is thrown away, optimizer.step() on scaled gradients,
backward() after unscale_(), an update() that is missing or comes between backward() and step(), a
second unscale_(), and a new GradScaler in every step.

## Why it matters
Some of these raise an error that names neither the call that is wrong nor the one that is missing.
The others are silent: the updates are too large or too small by the loss scale.

## Example
    scaler.scale(loss).backward()
    optimizer.step()                     # scaled gradients
    scaler.update()

## Fix
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

## Options
A train_step that reads the scale (get_scale()) and changes the gradients itself is assumed to
unscale them by hand.

## See also
ND403 clip-before-unscale, ND401 no-inf-checks
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.amp import (
    BACKWARD_AFTER_UNSCALE,
    FRESH_SCALER,
    NEVER_SCALED,
    SCALE_DISCARDED,
    STEPPED_SCALED,
    UPDATE_BETWEEN,
    AmpFacts,
    ScalerCall,
)
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.amp.misuses import misuse_claim, misuses_of
from nanodoc.rules.crash.failure_claims import failure_claim

_ORDERS: dict[str, tuple[str, str, Fix]] = {
    STEPPED_SCALED: (
        "the optimizer steps on gradients that are still multiplied by the loss scale",
        "The loss was scaled before backward and nothing has unscaled the gradients since, so "
        "every update is too large by a factor of the scale, and a step with non-finite "
        "gradients is not skipped.",
        Fix(title="let the scaler step", patch="scaler.step(optimizer)", confidence="likely"),
    ),
    NEVER_SCALED: (
        "backward() runs on a loss that was not scaled, and the scaler divides its gradients by "
        "the scale",
        "The scaler unscales gradients that were never scaled, so the updates are too small by a "
        "factor of the scale (Adam hides that until its eps matters), and small gradients still "
        "underflow in half precision.",
        Fix(title="scale this loss", patch="scaler.scale(loss).backward()", confidence="likely"),
    ),
    SCALE_DISCARDED: (
        "the scaled loss is thrown away: backward() runs on the unscaled one",
        "`scaler.scale(loss)` returns a new tensor and leaves `loss` unchanged. The scaler then "
        "divides the gradients by a scale that was never applied.",
        Fix(
            title="call backward() on what scale() returns",
            patch="scaler.scale(loss).backward()",
            confidence="likely",
        ),
    ),
    BACKWARD_AFTER_UNSCALE: (
        "unscale_() comes before a backward() that adds to the same gradients",
        "Scaled gradients are added to gradients that were already divided by the scale, so the "
        "later backward is weighted by the scale.",
        Fix(
            title="call unscale_() after the last backward() before the optimizer's step",
            confidence="likely",
        ),
    ),
    UPDATE_BETWEEN: (
        "update() may change the scale between backward() and step()",
        "Gradients that were multiplied by one scale are divided by another whenever update() "
        "grows or lowers it in between.",
        Fix(title="call update() once, after every optimizer has stepped", confidence="likely"),
    ),
    FRESH_SCALER: (
        "a new GradScaler is made in every step, so the loss scale never adapts",
        "What update() learns about overflows is lost with the scaler: each step starts from the "
        "initial scale again.",
        Fix(title="make the GradScaler once, before the loop", confidence="likely"),
    ),
}


@rule(
    "ND404",
    "scaler-call-order",
    "critical",
    "GradScaler calls missing, repeated or in the wrong order",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if evidence.failure is not None and evidence.amp_facts is not None:
        for message, explain in _FAILURES.items():
            if message in evidence.failure.message:
                yield explain(rule, evidence, evidence.amp_facts)
                return
    for kind, (title, explanation, fix) in _ORDERS.items():
        for misuse in misuses_of(evidence, kind):
            yield misuse_claim(
                rule, evidence, misuse, title=title, explanation=explanation, fix=fix
            )


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
            explanation="Every iteration ends with update(): it adapts the scale and makes the "
            "scaler ready for the next step. None was called, and the next iteration raises "
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
        title="between two updates, the scaler's calls are repeated or in the wrong order",
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
            explanation="optimizer.step() updates the weights with gradients that are still "
            "scaled and does not check them for inf; update() then finds that nothing was "
            "checked.",
            fix=Fix(
                title="let the scaler step", patch="scaler.step(optimizer)", confidence="likely"
            ),
        )
    return _call_claim(
        rule,
        evidence,
        failure.frames[-1] if failure.frames else None,
        title="update() is called on an iteration that stepped no optimizer",
        explanation="The scaler adapts to what step() or unscale_() found in the gradients, and "
        "neither has run since the last update().",
        fix=Fix(title="call update() only where step() was called", confidence="likely"),
    )


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


_FAILURES: dict[str, Callable[[Rule, Evidence, AmpFacts], Claim]] = {
    "unscale_() has already been called on this optimizer": _without_update,
    "unscale_() is being called after step()": _without_update,
    "step() has already been called since the last update()": _without_update,
    "but _scale is None": _without_scale,
    "No inf checks were recorded prior to update": _update_alone,
}
