"""ND608, ND613, ND614, ND622–ND624, ND626: what the loop itself does wrong, told by the order of
its calls and the model's mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Finding, Fix, Remedy
from nanodoc.diagnosis.rule import Rule
from nanodoc.diagnosis.thresholds import limit
from nanodoc.facts.calls import ModeFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import (
    CARRIED,
    CLIPPED_LATE,
    DISCARDED,
    FRESH_OPTIMIZER,
    NEVER_STEPPED,
    SUMMED,
    LoopFacts,
    LoopMisuse,
    ModeChange,
)
from nanodoc.facts.plateau import NO_BETTER, late_loss
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import count, effects, location_key
from nanodoc.rules.learning.loop_docs import DOCS

_OFTEN = 3  # steps: once or twice may be an exception that the loop makes on purpose
_MOSTLY = 0.5  # of the steps that were watched


def _misuse(evidence: Evidence, kind: str) -> LoopMisuse | None:
    loop = evidence.loop
    found = (
        next((one for one in loop.misuses if one.kind == kind), None) if loop is not None else None
    )
    if found is None or found.steps < _OFTEN or found.steps < _MOSTLY * max(found.watched - 1, 1):
        return None
    return found


def _finding(
    rule: Rule,
    evidence: Evidence,
    misuse: LoopMisuse,
    *,
    title: str,
    explanation: str,
    fix: str,
    root: tuple[object, ...] = (),
    severity: str | None = None,
    notes: tuple[tuple[str, object], ...] = (),
    weight: float = 0.85,
    remedy: Remedy | None = None,
) -> Claim:
    other = misuse.other
    extra = (
        (("the backward before it", _line(other)),)
        if other is not None and misuse.kind in (CARRIED, DISCARDED)
        else ()
    )
    extra = (
        (("the step it came after", _line(other)),)
        if other is not None and misuse.kind == CLIPPED_LATE
        else extra
    )
    return Claim(
        root=root or ("loop", misuse.kind),
        specificity=Specificity.EXACT,
        stage=Stage.LOOP,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=severity or rule.severity,
            confidence=confidence(
                weight,
                0.5 if misuse.steps >= misuse.watched - 2 else 0.1,
                0.3 if misuse.steps > 10 else 0.0,
            ),
            title=title,
            explanation=explanation,
            culprit=Culprit(
                kind="optimizer",
                parameter=next(iter(misuse.parameters), None),
                location=misuse.location,
            ),
            phase="optimizer",
            step=misuse.first_step,
            evidence=(("on", f"{misuse.steps} of {misuse.watched} steps watched"), *extra, *notes),
            effects=effects(evidence),
            fixes=(Fix(title=fix, confidence="likely", remedy=remedy),),
        ),
    )


def _line(span: SourceSpan | None) -> str:
    return (
        f"{span.file}:{span.line}: {span.code.splitlines()[0]}" if span is not None else "unknown"
    )


def _accumulating_gradients(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = _misuse(evidence, CARRIED)
    if misuse is None:
        return
    norms = [norm for norm in evidence.grad_norms if norm - norm == 0]
    growth = (("gradient norm", f"{norms[0]:.3g} → {norms[-1]:.3g}"),) if len(norms) > 1 else ()
    shown = misuse.parameters
    whom = (
        (
            f"{count(len(shown), 'parameter')} ({', '.join(shown[:2])}"
            f"{', …' if len(shown) > 2 else ''})"
        )
        if shown
        else "the parameters"
    )
    yield _finding(
        rule,
        evidence,
        misuse,
        # updates that blew up for this reason have this cause, whatever overflowed
        root=("optimizer", 0),
        title="gradients are never cleared: every step applies the sum of all before it",
        explanation=f"When this optimizer stepped, the gradients of {whom} still held those of its "
        "previous step: backward() adds to .grad, and nothing "
        "cleared it in between.",
        fix="call optimizer.zero_grad() once per optimizer step, before backward()",
        remedy=Remedy(kind="clear-gradients", whole_run=True),
        notes=growth,
    )


def _discarded_gradients(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = _misuse(evidence, DISCARDED)
    if misuse is not None:
        yield _finding(
            rule,
            evidence,
            misuse,
            title="gradients are cleared after backward() and before the step that should use them",
            explanation="When the optimizer stepped, every gradient that backward() had given its "
            "parameters was gone: zero_grad() came in between, so the step moves nothing but "
            "weight decay and momentum.",
            fix="call zero_grad() before backward() or after step(), not between them",
        )


def _clip_after_step(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = _misuse(evidence, CLIPPED_LATE)
    if misuse is not None:
        yield _finding(
            rule,
            evidence,
            misuse,
            title="gradients are clipped after the step that used them",
            explanation="The optimizer has already stepped on the gradients as they were; clipping them "
            "afterwards changes nothing.",
            fix="clip between backward() and optimizer.step()",
        )


def _unscaled_accumulation(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = _misuse(evidence, SUMMED)
    if misuse is not None and misuse.times >= 2:
        yield _finding(
            rule,
            evidence,
            misuse,
            # a sum may be meant, with a learning rate to match: where it hurts, the loss does not
            # come down
            severity=rule.severity
            if misuse.times >= limit(evidence, "unscaled-accumulation.micro-batches")
            and late_loss(evidence.losses) > NO_BETTER * evidence.losses[0]
            else "info",
            title=f"losses of {misuse.times} micro-batches are summed, not averaged",
            explanation=f"backward() runs {misuse.times} times from the same line before each optimizer "
            f"step, and no loss is divided by that number: the gradient is {misuse.times} "
            "times that of one batch of the same size.",
            fix=f"(loss / {misuse.times}).backward(), or a learning rate meant for the sum",
            weight=0.5,
        )


def _optimizer_state_lost(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = _misuse(evidence, FRESH_OPTIMIZER)
    if misuse is not None:
        yield _finding(
            rule,
            evidence,
            misuse,
            title="every step begins with an optimizer that has no state",
            explanation="The optimizer that stepped had no moments or momentum although the run had "
            "stepped before: it is made anew, or its state is dropped, each time. Adam "
            "without its moments takes steps of the full learning rate in every direction.",
            fix="make the optimizer once, outside the step",
        )


def _no_step(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    loop = evidence.loop
    misuse = (
        next((one for one in loop.misuses if one.kind == NEVER_STEPPED), None)
        if loop is not None
        else None
    )
    if misuse is None or not evidence.optimizer_sites or evidence.moved_by_hand:
        return
    stats = evidence.stats
    # moved by hand, or by an optimizer of one's own
    if stats is None or any(p.moved for p in stats.parameters):
        return
    yield _finding(
        rule,
        evidence,
        misuse,
        title="no optimizer ever steps",
        explanation=f"backward() ran in {count(misuse.steps, 'step')}, and no optimizer's step() was "
        "called: no parameter has moved.",
        fix="call optimizer.step() after backward()",
    )


# -- ND613 -----------------------------------------------------------------------------------------


def _wrong_mode(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection, loop = evidence.inspection, evidence.loop
    if inspection is None or loop is None:
        return
    learning = [one for one in inspection.modes if one.trainable]
    idle = [one for one in learning if not one.training]
    # some parts in eval mode are put there on purpose
    if not idle or len(idle) < len(learning) or inspection.training:
        # but not with statistics of no batch
        idle = [one for one in idle if one.untouched and _by_a_parent(loop, one.module)]
        if not idle:
            return
    change = _change(loop, {one.module for one in idle})
    since = next((step for step, training in reversed(loop.training_at) if not training), None)
    began = loop.training_at[0][1] if loop.training_at else True
    if change is None and began and since is None and not loop.observed:
        return
    yield Claim(
        root=location_key(change.location if change else None) or ("mode",),
        specificity=Specificity.EXACT,
        stage=Stage.LOOP,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            # without dropout a model learns all the same, and some train so on purpose
            severity=rule.severity
            if any(one.momentum is not None or "Norm" in one.module_type for one in idle)
            else "warning",
            confidence=confidence(
                0.7, 0.5 if change is not None else 0.2, 0.3 if len(idle) > 1 else 0.0
            ),
            title="the model trains in eval mode"
            if not inspection.training
            else f"{_what(idle)} trained in eval mode, with statistics of no batch",
            explanation=f"{_what(idle)} {'behaves' if len(idle) == 1 else 'behave'} as at inference while "
            "the parameters around learn: dropout drops nothing, batch norm uses its running "
            "statistics and doesn't update them.",
            culprit=Culprit(
                kind="module",
                module=change.module if change else idle[0].module,
                module_type=None if change else idle[0].module_type,
                location=change.location if change else idle[0].made_at,
            ),
            phase="forward",
            step=change.step if change is not None and change.step is not None else since,
            evidence=tuple((one.module, f"{one.module_type} in eval mode") for one in idle[:4]),
            fixes=(
                Fix(
                    title="call model.train() before the training steps, after every validation",
                    confidence="likely",
                ),
            ),
        ),
    )


def _by_a_parent(loop: LoopFacts, module: str) -> bool:
    """eval() was called on a module above it, not on the layer itself."""
    return any(one.module != module and _inside(module, one.module) for one in loop.mode_changes)


def _change(loop: LoopFacts, idle: set[str]) -> ModeChange | None:
    """The eval() that covers all these modules; it calls that of every module below."""
    covering = [
        one
        for one in loop.mode_changes
        if one.location is not None and all(_inside(name, one.module) for name in idle)
    ]
    return min(covering, key=lambda one: len(one.module), default=None)


def _inside(name: str, parent: str) -> bool:
    return parent == "" or name == parent or name.startswith(parent + ".")


def _what(idle: list[ModeFacts]) -> str:
    kinds: dict[str, int] = {}
    for one in idle:
        kinds[one.module_type] = kinds.get(one.module_type, 0) + 1
    return " and ".join(
        f"{kind} ({number}×)" if number > 1 else kind for kind, number in kinds.items()
    )


# -- ND614 -----------------------------------------------------------------------------------------


def _scheduler_order(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    loop = evidence.loop
    if loop is None or not loop.observed:
        return
    for one in loop.schedulers:
        if one.stepped_first and one.steps > 1:
            yield Claim(
                root=("scheduler", "order"),
                specificity=Specificity.SPECIAL,
                stage=Stage.LOOP,
                finding=Finding(
                    code=rule.code,
                    name=rule.name,
                    severity=rule.severity,
                    confidence=confidence(
                        0.7,
                        0.6
                        if any("lr_scheduler.step()" in w.message for w in loop.warnings)
                        else 0.2,
                    ),
                    title=f"{one.type} steps before the optimizer does",
                    explanation="The schedule moves on before the first update, so its first learning "
                    "rate is never used and every later one comes a step early.",
                    culprit=Culprit(kind="optimizer", location=one.stepped_at or one.built_at),
                    phase="optimizer",
                    step=0,
                    evidence=tuple(
                        ("torch warned", w.message[:120])
                        for w in loop.warnings
                        if "lr_scheduler.step()" in w.message
                    ),
                    fixes=(
                        Fix(
                            title="call scheduler.step() after optimizer.step()",
                            confidence="likely",
                        ),
                    ),
                ),
            )
            return


def _rule(
    code: str,
    name: str,
    severity: str,
    summary: str,
    check: Callable[[Rule, Evidence], Iterable[Claim]],
) -> Rule:
    return Rule(
        code=code, name=name, severity=severity, summary=summary, check=check, doc=DOCS[code]
    )


RULES = (
    _rule(
        "ND608",
        "accumulating-gradients",
        "critical",
        "gradients are never cleared between steps",
        _accumulating_gradients,
    ),
    _rule("ND613", "wrong-mode", "critical", "the model trains in eval mode", _wrong_mode),
    _rule(
        "ND614",
        "scheduler-order",
        "warning",
        "the schedule steps before the optimizer",
        _scheduler_order,
    ),
    _rule(
        "ND622",
        "discarded-gradients",
        "critical",
        "gradients are cleared before they are used",
        _discarded_gradients,
    ),
    _rule(
        "ND623",
        "unscaled-accumulation",
        "warning",
        "losses of micro-batches summed, not averaged",
        _unscaled_accumulation,
    ),
    _rule(
        "ND624",
        "clip-after-step",
        "critical",
        "gradients are clipped after the step that used them",
        _clip_after_step,
    ),
    _rule(
        "ND626",
        "optimizer-state-lost",
        "critical",
        "an optimizer without its state at every step",
        _optimizer_state_lost,
    ),
    _rule("ND628", "missing-step", "critical", "no optimizer ever steps", _no_step),
)
