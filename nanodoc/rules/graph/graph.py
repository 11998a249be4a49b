"""ND401, ND501, ND502, ND505, ND509: gradient paths that end too early, and what they leave without
a gradient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Finding, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import (
    CUT,
    LOST,
    UNREACHED,
    UNUSED,
    CutFacts,
    GraphFacts,
    ParameterState,
    graph_failure,
)
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import count, effects, location_key
from nanodoc.rules.graph.graph_docs import CUT_DOC, NO_INF_DOC, NO_LOSS_DOC, REGION_DOC, UNUSED_DOC
from nanodoc.rules.graph.graph_fixes import fixes_for
from nanodoc.rules.graph.graph_texts import EXPLANATIONS, TITLES
from nanodoc.text import ranges

_SHOWN = 4


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


def _family(evidence: Evidence) -> str | None:
    return graph_failure(evidence.failure.message) if evidence.failure is not None else None


def _cut_graph(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    graph = evidence.graph
    if graph is None or _family(evidence) not in (None, "no-grad", "no-inf-checks", "inference"):
        return
    if rule.name == "cut-graph" and evidence.failure is None:
        for cut in graph.dead_terms:
            yield _dead_term(rule, evidence, cut)
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
        yield cut_claim(rule, evidence, cut, hurt)


def _dead_term(rule: Rule, evidence: Evidence, cut: CutFacts) -> Claim:
    claim = cut_claim(rule, evidence, cut, cut.orphans)
    where = cut.added_at
    added = (
        (("added to the loss at", f"{where.file}:{where.line}: {where.code.splitlines()[0]}"),)
        if where is not None
        else ()
    )
    explanation = (
        f"{EXPLANATIONS[cut.kind](cut)} The term changes the loss that is printed and nothing "
        f"else: through it no gradient reaches {names(cut.orphans)}."
    )
    finding = replace(
        claim.finding,
        severity="info" if cut.kind == "detach" else "warning",
        title=f"a term of the loss carries no gradient: {TITLES[cut.kind](cut).removesuffix(' and')}",
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
    title = f"{claim.finding.title} {where} only"
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
    explanation = f"{note}{EXPLANATIONS[cut.kind](cut)} Left without a gradient: {names(hurt)}."
    if graph.loss_rewrapped:
        explanation += (
            " The loss is wrapped as a new leaf, so backward() succeeds and reaches nothing: drop "
            "that as well."
        )
    return Claim(
        root=location_key(where) or ("op", cut.op.index),
        specificity=specificity,
        position=cut.op.index,
        finding=Finding(
            code=rule.code,
            name=rule.name,
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
    return cut.region or cut.returned_at or cut.op.location


def _evidence(
    evidence: Evidence, cut: CutFacts, hurt: tuple[str, ...], where: SourceSpan | None
) -> tuple[tuple[str, object], ...]:
    graph = evidence.graph
    assert graph is not None
    found: list[tuple[str, object]] = [("parameters without gradient", len(hurt))]
    first = cut.op.location
    if where is not first and first is not None:
        found.append(
            ("first op inside" if cut.region else "applied at", f"{first.file}:{first.line}")
        )
    if hurt and set(hurt) <= set(evidence.never_got_gradient) and evidence.failure is None:
        found.append(("steps without gradient", f"{evidence.steps_run} of {evidence.steps_run}"))
    return tuple(found)


# -- ND401 -----------------------------------------------------------------------------------------


def _no_inf_checks(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if _family(evidence) != "no-inf-checks":
        return
    graph, step = evidence.graph, evidence.failure_step
    note = (
        f"GradScaler.step() found no gradient in this optimizer at step {step}, so it has checked "
        "nothing. "
    )
    if graph is None:
        return
    empty = [
        n
        for n in _optimizers(graph)
        if all(p.norm is None for p in graph.parameters if n in p.optimizers)
    ]
    theirs = {p.name for p in graph.parameters if set(p.optimizers) & set(empty)}
    claimed = False
    for cut in graph.cuts:
        hurt = tuple(name for name in cut.orphans if name in theirs)
        if hurt:
            claimed = True
            yield cut_claim(rule, evidence, cut, hurt, specificity=Specificity.SPECIAL, note=note)
    if claimed:
        return
    first = next((p for p in graph.parameters if p.name in theirs), None)
    states = {p.state for p in graph.parameters if p.name in theirs}
    why = (
        "its parameters are frozen"
        if states == {"frozen"}
        else "none of its parameters is read in this step"
        if states <= {UNUSED, UNREACHED} and states
        else "its tensors are not the model's"
    )
    position = empty[0] if empty else None
    sites = evidence.optimizer_sites
    where = (
        sites[position]
        if position is not None and position < len(sites)
        else (sites[0] if sites else None)
    )
    yield Claim(
        root=("failure",),
        specificity=Specificity.SPECIAL,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(0.5, 0.4 if first else 0.1),
            title=f"the GradScaler has no gradient to check: {why}",
            explanation=f"{note}{why[0].upper()}{why[1:]}{': ' + names(sorted(theirs)) if theirs else ''}.",
            culprit=Culprit(
                kind="optimizer",
                module=first.module if first else None,
                parameter=first.name if first else None,
                location=first.registered_at if first and first.registered_at else where,
            ),
            phase="optimizer",
            step=step,
            effects=effects(evidence),
            fixes=(
                Fix(
                    title="call scaler.step() only for optimizers whose parameters got a gradient "
                    "in this step",
                    confidence="likely",
                ),
            ),
        ),
    )


def _optimizers(graph: GraphFacts) -> list[int]:
    return sorted({n for p in graph.parameters for n in p.optimizers})


# -- ND502 -----------------------------------------------------------------------------------------


def _loss_without_grad(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    graph = evidence.graph
    if graph is None or placed(graph) or _family(evidence) not in (None, "no-grad"):
        return
    if graph.loss_needs_grad and not graph.loss_rewrapped:
        return
    trainable = [p for p in graph.parameters if p.state != "frozen"]
    if not trainable and graph.parameters:
        return  # ND508 says who froze them
    if (
        evidence.failure is None
        and evidence.stats is not None
        and any(p.moved for p in evidence.stats.parameters)
    ):
        return  # gradients come from elsewhere: torch.func
    if (
        evidence.failure is None
        and evidence.loop is not None
        and evidence.loop.observed
        and not graph.losses
    ):
        return  # nothing was differentiated: a buffer that fills first
    site = graph.loss_site
    off = evidence.grad_switched_off_at
    if evidence.grad_off_since_build or off is not None:
        where = off or (site.location if site else None)
        title = "gradients were switched off before training began"
        why = (
            "torch.set_grad_enabled(False) was called outside of any `with`, so it holds for "
            "everything that follows."
        )
        fix = "use `with torch.no_grad():` around the code that needs it"
    else:
        where = site.location if site else None
        title = "the loss does not depend on any trainable parameter"
        why = "No op on the way to the loss reads a parameter that requires gradient."
        fix = "compute the loss from the model's output"
    used = [p.name for p in trainable if p.state != UNUSED]
    yield Claim(
        root=location_key(where) or ("failure",),
        specificity=Specificity.FAMILY,
        position=site.index if site else 0,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(0.7, 0.4 if where else 0.0, 0.4 if evidence.failure else 0.0),
            title=title,
            explanation=why
            + (f" Read, but without effect on the loss: {names(used)}." if used else ""),
            culprit=Culprit(
                kind="op",
                op=site.op if site else None,
                module=site.module if site else None,
                location=where,
            ),
            phase="forward",
            step=graph.step,
            effects=effects(evidence),
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )


# -- ND505 -----------------------------------------------------------------------------------------


def _unused_parameter(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    """Only warns where there is evidence of a slip: a sibling of the same kind was called in its
    place."""
    graph = evidence.graph
    if graph is None or evidence.failure is not None or not graph.loss_needs_grad:
        return
    hidden = {u.owner for u in evidence.ownership.unregistered} if evidence.ownership else set()
    groups: dict[str, list[ParameterState]] = {}
    for p in graph.parameters:
        idle = (
            p.state in (UNUSED, UNREACHED)
            and p.optimizers
            and p.name in evidence.never_got_gradient
        )
        if idle and p.name not in evidence.moved_by_hand and p.module not in hidden:
            groups.setdefault(_top(graph, p.module), []).append(p)
    for module, members in groups.items():
        first = members[0]
        unread = all(p.state == UNUSED for p in members)
        slip = unread and first.twin is not None and bool(graph.fresh_parameters)
        yield Claim(
            root=("unused", module),
            specificity=Specificity.FALLBACK,
            stage=Stage.NOTE,
            position=-1,
            finding=Finding(
                code=rule.code,
                name=rule.name,
                severity="warning" if slip else "info",
                confidence=confidence(0.6, 0.3 if evidence.steps_run > 1 else 0.0),
                title=f"{count(len(members), 'parameter')} of {module or 'the model'} "
                + (
                    "never used in the forward pass"
                    if unread
                    else "used, but the loss does not depend on them"
                ),
                explanation=f"In {count(evidence.steps_run, 'step')} no gradient reached "
                f"{names([p.name for p in members])}; "
                "the optimizer holds them, and they stay at their initial values.",
                culprit=Culprit(
                    kind="parameter",
                    module=module or None,
                    module_type=first.module_type,
                    parameter=first.name,
                    location=first.registered_at,
                ),
                phase="forward",
                step=graph.step,
                evidence=(("elements", sum(p.numel for p in members)),),
            ),
        )


def _top(graph: GraphFacts, module: str) -> str:
    """The highest ancestor of a module that is idle as a whole."""
    best, parts = module, module.split(".")
    for length in range(len(parts) - 1, 0, -1):
        path = ".".join(parts[:length])
        below = [p for p in graph.parameters if p.name.startswith(path + ".")]
        if any(p.state not in (UNUSED, UNREACHED) for p in below):
            break
        best = path
    return best


RULES = (
    Rule(
        code="ND401",
        name="no-inf-checks",
        severity="critical",
        summary="the GradScaler found no gradient of this optimizer to check",
        check=_no_inf_checks,
        doc=NO_INF_DOC,
    ),
    Rule(
        code="ND501",
        name="cut-graph",
        severity="critical",
        summary="the gradient path to some parameters ends too early",
        check=_cut_graph,
        doc=CUT_DOC,
    ),
    Rule(
        code="ND502",
        name="loss-without-grad",
        severity="critical",
        summary="the loss does not require gradient",
        check=_loss_without_grad,
        doc=NO_LOSS_DOC,
    ),
    Rule(
        code="ND505",
        name="unused-parameter",
        severity="warning",
        summary="a parameter never takes part",
        check=_unused_parameter,
        doc=UNUSED_DOC,
    ),
    Rule(
        code="ND509",
        name="no-grad-region",
        severity="critical",
        summary="trainable layers run with gradients switched off",
        check=_cut_graph,
        doc=REGION_DOC,
    ),
)
