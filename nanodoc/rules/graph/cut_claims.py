"""ND401, ND501, ND502, ND505, ND509: gradient paths that end too early, and what they leave without
a gradient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import (
    CUT,
    FROZEN,
    LOST,
    CutFacts,
    GraphFacts,
    fix_key,
    graph_failure,
)
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import count, effects, location_key
from nanodoc.rules.graph.graph_fixes import fixes_for
from nanodoc.rules.graph.graph_texts import EXPLANATIONS, TITLES
from nanodoc.rules.learning.claims import Standing, at_call, learning_claim
from nanodoc.text import ranges
from nanodoc.vocabulary.calls import JOINS, TRANSPOSES

_SHOWN = 4
_SMOOTH = (
    *TRANSPOSES,
    *JOINS,
    "view",
    "reshape",
    "unsafe_view",
    "squeeze",
    "unsqueeze",
    "split",
    "unbind",
    "alias",
    "clone",
    "slice",
    "select",
    "expand",
)


_SAME = 1e-6  # of the loss: rounding


def names(parameters: Iterable[str], most: int = _SHOWN) -> str:
    """The first few names, and how many more there are."""
    listed = list(parameters)
    return ", ".join(listed[:most]) + (
        f" and {len(listed) - most} more" if len(listed) > most else ""
    )


def placed(graph: GraphFacts) -> tuple[CutFacts, ...]:
    """The cuts but for those of a region that nobody opened during the step: gradients were off
    before it began."""
    return tuple(cut for cut in graph.cuts if cut.kind != "region" or cut.region is not None)


def damage(evidence: Evidence, cut: CutFacts) -> tuple[str, ...]:
    """The parameters that a cut keeps from learning: handed to an optimizer, without a gradient in
    every step that was run, and moved by nothing else."""
    graph = evidence.graph
    assert graph is not None
    failed = evidence.failure is not None
    held_somewhere = any(p.optimizers for p in graph.parameters)
    states = {p.name: p for p in graph.parameters}
    hurt = []
    for name in cut.orphans:
        state = states[name]
        lasting = failed or name in evidence.never_got_gradient or cut.kind == "flat"
        if (
            lasting
            and (state.optimizers or not held_somewhere)
            and name not in evidence.moved_by_hand
        ):
            hurt.append(name)
    return tuple(hurt)


def is_teacher(graph: GraphFacts, cut: CutFacts) -> bool:
    """A branch run without gradients on purpose: every orphan began as the copy of a parameter that
    learns, and whatever else is trainable learns."""
    states = {p.name: p for p in graph.parameters}
    orphans = set(cut.orphans)
    others_learn = all(p.state not in (CUT, LOST) or p.name in orphans for p in graph.parameters)
    # vectors often begin alike: biases at zero, norms at one
    telling = any(len(states[name].shape) > 1 for name in orphans)
    return (
        cut.kind in ("region", "detach")
        and others_learn
        and telling
        and all(states[name].copied for name in orphans)
    )


def failure_family(evidence: Evidence) -> str | None:
    return graph_failure(evidence.failure.message) if evidence.failure is not None else None


def cut_graph(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    graph = evidence.graph
    if graph is None or failure_family(evidence) not in (
        None,
        "no-grad",
        "no-inf-checks",
        "inference",
    ):
        return
    if rule.name == "cut-graph" and evidence.failure is None:
        for cut in graph.dead_terms:
            if not _is_smooth(cut):
                yield _dead_term(rule, evidence, cut)
        yield from _nothing_left(rule, evidence)
    flat = [cut for cut in graph.flat if set(cut.orphans) <= set(evidence.always_zero)]
    for cut in (*placed(graph), *flat):
        region = cut.kind == "region" and _trainable_inside(cut)
        hurt = damage(evidence, cut)
        if not hurt and rule.name == "cut-graph":
            yield from _sometimes(rule, evidence, cut)
        if region != (rule.name == "no-grad-region"):
            continue
        if not hurt or (evidence.failure is None and is_teacher(graph, cut)):
            continue
        if _is_disproved(graph, cut):
            continue
        yield cut_claim(rule, evidence, cut, hurt)


def _is_smooth(cut: CutFacts) -> bool:
    """An op that has a derivative, and gave a result without one: why, is not known."""
    return cut.kind == "no-derivative" and cut.op.short in _SMOOTH


def _is_disproved(graph: GraphFacts, cut: CutFacts) -> bool:
    """Without the freezing, the parameters still get no gradient, and another cut keeps it from
    them."""
    key = fix_key(cut.op.location, cut.region)
    tried = cut.kind == "frozen-midway" and (key, "unfrozen") in graph.refuted
    raised = any((where, kind) == (key, "unfrozen") for where, kind, _ in graph.raised)
    others = (other for other in graph.cuts if other is not cut and other.kind != cut.kind)
    return tried and not raised and any(set(cut.orphans) <= set(o.orphans) for o in others)


def _nothing_left(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    """Every gradient of every step was exactly zero, and the loss is made of a detached tensor:
    what else it holds of the parameters is multiplied by zero."""
    graph, inspection = evidence.graph, evidence.inspection
    known = {p.name for p in graph.parameters if p.state != FROZEN} if graph is not None else set()
    if inspection is None or not known or not known <= set(evidence.always_zero):
        return
    # a margin that always holds has no gradient either; a loss that goes up and down should
    if len(evidence.losses) < 2 or max(evidence.losses) - min(evidence.losses) <= _SAME * max(
        map(abs, evidence.losses)
    ):
        return
    calls = inspection.calls
    reaching = calls.reaching_the_loss()
    cut = next(
        (
            call
            for call in reversed(calls.calls)
            if call.index in reaching
            and call.name in ("detach", "get")
            and not call.requires_grad
            and call.site is not None
            and any(argument.requires_grad for argument in call.arguments)
        ),
        None,
    )
    if cut is None:
        return
    yield learning_claim(
        rule,
        location_key(cut.site) or ("op", cut.index),
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.EXACT),
        severity="critical",
        weight=confidence(0.8, 0.5 if evidence.steps_run > 2 else 0.0),
        title="every gradient is exactly zero: the loss is computed from a detached tensor",
        explanation="Its value depends on the parameters, but no gradient flows back through it. "
        "All other paths from the parameters to the loss give a gradient of zero: no step "
        "changes anything.",
        culprit=at_call(cut, evidence),
        step=inspection.step,
        notes=[("parameters with a gradient of exactly zero", len(known))],
        fix="remove the detach() from the loss",
    )


def _dead_term(rule: Rule, evidence: Evidence, cut: CutFacts) -> Claim:
    claim = cut_claim(rule, evidence, cut, cut.orphans)
    where = cut.added_at
    added = (
        (("added to the loss at", f"{where.place}: {where.code.splitlines()[0]}"),)
        if where is not None
        else ()
    )
    explanation = (
        f"{EXPLANATIONS[cut.kind](cut)} The term only changes the printed loss: through it no "
        f"gradient reaches {names(cut.orphans)}."
    )
    finding = replace(
        claim.finding,
        # a library's own loss has its reasons
        severity="info" if cut.kind == "detach" or cut.added_by_library else "warning",
        title="a term of the loss carries no gradient: "
        f"{TITLES[cut.kind](cut).removesuffix(' and')}",
        explanation=explanation,
        evidence=added,
        experiments=(),
        confidence=confidence(0.6, 0.3 if claim.finding.culprit.location else 0.0),
    )
    return replace(
        claim, specificity=Specificity.FAMILY, stage=Stage.LEARNING, position=-1, finding=finding
    )


def _sometimes(rule: Rule, evidence: Evidence, cut: CutFacts) -> Iterable[Claim]:
    """A cut on some of the steps that were looked at: often meant, so it is only told."""
    steps = dict(evidence.steps_without_gradient)
    lacking = steps.get(cut.orphans[0], ())
    if not lacking or any(steps.get(name) != lacking for name in cut.orphans):
        return
    claim = cut_claim(rule, evidence, cut, cut.orphans)
    where = f"on step{'s' if len(lacking) > 1 else ''} {ranges(lacking)} of {evidence.steps_run}"
    title = f"{claim.finding.title} only {where}"
    yield replace(
        claim,
        specificity=Specificity.FALLBACK,
        finding=replace(claim.finding, severity="info", title=title, fixes=(), experiments=()),
    )


def _trainable_inside(cut: CutFacts) -> bool:
    """The region holds the layers themselves, and doesn't merely receive what they computed."""
    return bool(cut.op.module) and cut.region_kind != "checkpoint"


def cut_claim(
    rule: Rule,
    evidence: Evidence,
    cut: CutFacts,
    hurt: tuple[str, ...],
    *,
    specificity: Specificity = Specificity.FAMILY,
    note: str = "",
) -> Claim:
    """The claim of `rule` on one cut, at the line that makes it."""
    graph = evidence.graph
    assert graph is not None
    where = blamed(cut)
    fixes, tried = fixes_for(graph, cut)
    every = len(hurt) == sum(
        1 for p in graph.parameters if p.state in (CUT, LOST) or p.norm is not None
    )
    whom = "every trainable parameter" if every else count(len(hurt), "parameter")
    title = f"{TITLES[cut.kind](cut)} keeps gradient from {whom}"
    explanation = f"{note}{EXPLANATIONS[cut.kind](cut)} Without a gradient: {names(hurt)}."
    if graph.loss_rewrapped:
        explanation += (
            " The loss is wrapped in a new leaf tensor, so backward() succeeds but reaches "
            "nothing: remove that as well."
        )
    return Claim(
        root=location_key(where) or ("op", cut.op.index),
        specificity=specificity,
        position=cut.op.index,
        finding=rule.finding(
            severity="critical",
            confidence=confidence(
                0.6,
                0.3 if where else 0.0,
                0.4 if evidence.failure else 0.0,
                0.6 if any(f.verified for f in fixes) else 0.0,
            ),
            title=title,
            explanation=explanation,
            culprit=Culprit(
                kind="op",
                op=cut.op.op,
                module=cut.op.module,
                module_type=cut.op.module_type,
                parameter=hurt[0] if hurt else None,
                location=where,
            ),
            phase="forward",
            step=graph.step,
            evidence=_evidence(evidence, cut, hurt, where),
            effects=effects(evidence),
            experiments=tried,
            fixes=fixes,
        ),
    )


def blamed(cut: CutFacts) -> SourceSpan | None:
    """The line to change: the one that opened the region, the backward that returns nothing, else
    the op itself."""
    return cut.region or cut.returned_at or cut.op.site


def _evidence(
    evidence: Evidence, cut: CutFacts, hurt: tuple[str, ...], where: SourceSpan | None
) -> tuple[tuple[str, object], ...]:
    graph = evidence.graph
    assert graph is not None
    found: list[tuple[str, object]] = [("parameters without gradient", len(hurt))]
    first = cut.op.site
    if where is not first and first is not None:
        found.append(("first op inside" if cut.region else "applied at", first.place))
    if hurt and set(hurt) <= set(evidence.never_got_gradient) and evidence.failure is None:
        found.append(("steps without gradient", f"{evidence.steps_run} of {evidence.steps_run}"))
    return tuple(found)
