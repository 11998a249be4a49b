"""`--preflight`: what can be known of a training after one step, as a list of checks. Pure
functions of evidence and findings; without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from nanodoc.diagnosis.finding import OK, PROBLEM, SKIPPED, Check, Finding
from nanodoc.facts.calls import CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.vocabulary.calls import LOSSES


def preflight(
    evidence: Evidence, findings: Iterable[Finding], failed_check: Callable[[Finding], str | None]
) -> tuple[Check, ...]:
    """Every check, in the order in which a step goes."""
    found = list(findings)
    makers: tuple[tuple[str, Callable[[Evidence], str | None]], ...] = (
        ("batch", _batch),
        ("ids", _ids),
        ("labels", _labels),
        ("modes", _modes),
        ("loss", _loss),
        ("initial loss", _initial),
        ("gradients", _gradients),
        ("optimizer", _optimizer),
    )
    checks = []
    for name, describe in makers:
        problem = next((finding for finding in found if failed_check(finding) == name), None)
        text = describe(evidence) if problem is None else None
        if problem is not None:
            checks.append(Check(name=name, state=PROBLEM, text=f"{problem.code}: {problem.title}"))
        else:
            checks.append(
                Check(name=name, state=OK if text else SKIPPED, text=text or "nothing to check")
            )
    return tuple(checks)


def _calls(evidence: Evidence) -> tuple[CallFacts, ...]:
    return evidence.inspection.calls.calls if evidence.inspection is not None else ()


def _batch(evidence: Evidence) -> str | None:
    leaves = evidence.data.leaves if evidence.data is not None else ()
    shown = [
        f"{leaf.path} {leaf.dtype} {list(leaf.shape)} "
        + (
            f"mean {leaf.mean:.3g}, std {leaf.std:.3g}"
            if leaf.floating
            else f"{leaf.minimum:.0f}…{leaf.maximum:.0f}"
        )
        for leaf in leaves[:4]
    ]
    return "; ".join(shown) or None


def _ids(evidence: Evidence) -> str | None:
    shown = [
        f"{call.module or 'embedding'}: {lookup.ids.low:.0f}…{lookup.ids.high:.0f} of "
        f"{lookup.rows} rows"
        for call in _calls(evidence)
        if (lookup := call.notes.lookup) is not None and lookup.ids is not None
    ]
    return "; ".join(dict.fromkeys(shown[:4])) or None


def _labels(evidence: Evidence) -> str | None:
    for call in _calls(evidence):
        labels = call.notes.labels
        if labels is not None and labels.classes and labels.targets:
            ignored = f", {labels.ignored} ignored" if labels.ignored else ""
            seen = labels.counts.seen if labels.counts is not None else 0
            return f"{labels.targets} targets, {seen} of {labels.classes} classes seen{ignored}"
    return None


def _modes(evidence: Evidence) -> str | None:
    modes = evidence.inspection.modes if evidence.inspection is not None else ()
    if not modes:
        return None
    training = sum(mode.training for mode in modes)
    return f"{training} of {len(modes)} dropout and batch norm layers are in training mode"


def _loss(evidence: Evidence) -> str | None:
    reaching = (
        evidence.inspection.calls.reaching_the_loss()
        if evidence.inspection is not None
        else frozenset()
    )
    for call in _calls(evidence):
        if call.index in reaching and call.name in LOSSES and len(call.arguments) > 1:
            prediction, target = call.arguments[:2]
            return f"{call.name} of {list(prediction.shape)} and {list(target.shape)}"
    return None


def _initial(evidence: Evidence) -> str | None:
    if not evidence.losses or not math.isfinite(evidence.losses[0]):
        return None
    loss = f"{evidence.losses[0]:.4g}"
    for call in _calls(evidence):
        if (classes := call.classes) > 1:
            return (
                f"{loss}; guessing among {classes} classes gives ln {classes} = "
                f"{math.log(classes):.4g}"
            )
    return loss


def _gradients(evidence: Evidence) -> str | None:
    graph = evidence.graph
    if evidence.trip is not None or evidence.failure is not None or graph is None:
        return None
    trainable = [p for p in graph.parameters if p.state != "frozen"]
    with_gradient = [p for p in trainable if p.state in ("gradient", "zero")]
    return (
        f"reach {len(with_gradient)} of {len(trainable)} trainable parameters, norm "
        f"{evidence.grad_norms[0]:.3g}"
        if trainable
        else None
    )


def _optimizer(evidence: Evidence) -> str | None:
    if not evidence.optimizer_sites:
        return None
    rates = ", ".join(f"{rate:.3g}" for rate in evidence.learning_rates)
    return (
        f"covers every trainable parameter, learning rate {rates}"
        if rates
        else "covers every trainable parameter"
    )
