"""ND506–508, ND514–517: who owns which parameter, and who was meant to."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Finding, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import (
    FROZEN,
    OwnedParameter,
    OwnershipFacts,
    UnregisteredModule,
    unregistered_name,
)
from nanodoc.rules.base import count, effects
from nanodoc.rules.graph.graph import names
from nanodoc.rules.graph.ownership_docs import DOCS


def _neglected(facts: OwnershipFacts) -> list[OwnedParameter]:
    """Trainable parameters that receive gradients and that nothing updates."""
    return [p for p in facts.missing if p.gradient and not p.moved]


def _parameter_not_in_optimizer(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.ownership
    if facts is None or not facts.optimizers or _replaced(facts):
        return
    missing = _neglected(facts)
    if not missing:
        return
    first = missing[0]
    where = (
        facts.optimizers[0]
        if len(facts.optimizers) == 1
        else first.registered_at or facts.optimizers[0]
    )
    # a backbone from a checkpoint that the optimizer was not given is a common way to fine-tune the
    # rest
    loaded = all(p.loaded for p in missing)
    tops = list(dict.fromkeys(p.module or p.name for p in missing))
    yield Claim(
        root=("owner", "missing"),
        specificity=Specificity.FAMILY,
        stage=Stage.OWNERSHIP,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity="info" if loaded else "critical",
            confidence=confidence(0.7, 0.4 if facts.steps > 1 else 0.0, 0.3 if where else 0.0),
            title=f"{count(len(missing), 'trainable parameter')} "
            f"{'is' if len(missing) == 1 else 'are'} in no optimizer: "
            f"{names([p.name for p in missing])}",
            explanation=f"They get gradients (norm {first.gradient:.3g} for {first.name}) and nothing "
            f"updates them, so {names(tops)} stay{'s' if len(tops) == 1 else ''} at "
            f"{'the values loaded' if loaded else 'its initial values' if len(tops) == 1 else 'their initial values'}.",
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
                    title=f"hand {names([p.name for p in missing])} to the optimizer, or set "
                    "requires_grad=False if they are to stay",
                    confidence="likely",
                ),
            ),
        ),
    )


def _replaced(facts: OwnershipFacts) -> bool:
    """The optimizer holds tensors of the missing parameters' shapes that belong to nothing."""
    shapes = {p.shape for p in facts.stale}
    return bool(facts.stale) and (
        bool(facts.replaced_at) or any(p.shape in shapes for p in facts.missing)
    )


def _stale_optimizer(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.ownership
    if facts is None or not _replaced(facts):
        return
    missing = _neglected(facts)
    if not missing:
        return
    first = missing[0]
    built = facts.optimizers[0] if facts.optimizers else None
    where = facts.replaced_at[-1] if facts.replaced_at else built
    notes = (
        (("optimizer made at", f"{built.file}:{built.line}"),)
        if built is not None and where is not built
        else ()
    )
    yield Claim(
        root=("owner", "missing"),
        specificity=Specificity.SPECIAL,
        stage=Stage.OWNERSHIP,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(0.8, 0.4 if facts.replaced_at else 0.0, 0.3 if where else 0.0),
            title=f"the optimizer holds {count(len(facts.stale), 'tensor')} that the model no "
            "longer has",
            explanation=f"It was made before the model was complete: {names([p.name for p in missing])} "
            "came later, get gradients, and are in no optimizer, while "
            f"{count(len(facts.stale), 'tensor')} it was given belong to nothing.",
            culprit=Culprit(
                kind="parameter",
                module=first.module or None,
                module_type=first.module_type,
                parameter=first.name,
                location=where,
            ),
            phase="setup",
            step=None,
            evidence=notes,
            effects=effects(evidence),
            fixes=(
                Fix(
                    title="make the optimizer after the last change to the model",
                    confidence="likely",
                ),
            ),
        ),
    )


def _unexpectedly_frozen(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.ownership
    frozen = facts.frozen if facts is not None else None
    graph_frozen = (
        evidence.graph is not None
        and all(p.state == FROZEN for p in evidence.graph.parameters)
        and evidence.graph.parameters
    )
    if frozen is None or not frozen.frozen:
        return
    if not frozen.trainable and (graph_frozen or evidence.failure is not None):
        severity, title = "critical", "every parameter is frozen"
        why = (
            f"requires_grad is False on all {frozen.frozen} parameters, so the loss has no graph "
            "and nothing can learn."
        )
    elif frozen.head_frozen:
        severity, title = (
            "warning",
            f"the last layers ({frozen.head_frozen}) are frozen at their initial values",
        )
        why = (
            f"{frozen.head_frozen} was never loaded from a checkpoint and requires no gradient, "
            "while layers right before it train and earlier ones don't."
        )
    elif frozen.only_norms_train and not frozen.trainable > frozen.frozen:
        severity, title = "warning", "only normalisation layers train"
        why = (
            f"{count(frozen.frozen, 'parameter')} are frozen and the {frozen.trainable} that train "
            "all belong to normalisation layers."
        )
    else:
        return
    yield Claim(
        root=("failure",)
        if evidence.failure is not None and severity == "critical"
        else ("owner", "frozen"),
        specificity=Specificity.SPECIAL,
        stage=Stage.OWNERSHIP,
        position=-1,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=severity,
            confidence=confidence(
                0.6,
                0.3 if frozen.frozen_at else 0.0,
                0.4 if evidence.failure or frozen.in_optimizer else 0.0,
            ),
            title=title,
            explanation=why
            + (
                " The optimizer was given frozen parameters all the same."
                if frozen.in_optimizer
                else ""
            ),
            culprit=Culprit(
                kind="parameter",
                module=frozen.head_frozen,
                parameter=frozen.head_frozen_parameter or frozen.tensors[-1],
                location=frozen.frozen_at,
            ),
            phase="setup",
            step=None,
            effects=effects(evidence),
            fixes=(Fix(title="freeze only what is meant to stay", confidence="likely"),),
        ),
    )


def _unregistered_module(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.ownership
    for hidden in facts.unregistered if facts is not None else ():
        left = _left_behind(hidden, evidence)
        if not left and (hidden.in_optimizer or not hidden.with_gradient):
            continue
        container = {
            "list": "nn.ModuleList",
            "tuple": "nn.ModuleList",
            "dict": "nn.ModuleDict",
        }.get(hidden.container, "nn.ModuleList")
        if set(hidden.types) == {"Parameter"}:
            container = "nn.ParameterDict" if hidden.container == "dict" else "nn.ParameterList"
        yield Claim(
            root=("failure",)
            if left
            else ("owner", "unregistered", hidden.owner, hidden.attribute),
            specificity=Specificity.SPECIAL,
            stage=Stage.STEP if left else Stage.OWNERSHIP,
            position=0 if left else -2,
            finding=Finding(
                code=rule.code,
                name=rule.name,
                severity=rule.severity,
                confidence=confidence(0.8, 0.6, 0.3 if hidden.assigned_at else 0.0),
                title=f"{hidden.attribute} is a plain {hidden.container}: its "
                f"{', '.join(hidden.types)} are not in parameters()",
                explanation=f"{count(hidden.tensors, 'trainable tensor')} ({hidden.parameters} values) in "
                f"{hidden.owner_type}.{hidden.attribute} take part in the forward pass"
                f"{'' if left else ' and get gradients'}, but a module only registers what is "
                "assigned to it directly or sits in a module container: "
                f"{'' if hidden.in_optimizer else 'no optimizer holds them, and '}"
                "state_dict() and .to() pass them "
                f"by{f': they stayed on {left}, and the model is elsewhere' if left else ''}.",
                culprit=Culprit(
                    kind="module",
                    module=hidden.owner,
                    module_type=hidden.owner_type,
                    location=hidden.assigned_at,
                ),
                phase="setup",
                step=None,
                evidence=(
                    ("left on", left)
                    if left
                    else ("tensors with a gradient", hidden.with_gradient),
                    ("attribute", hidden.attribute),
                ),
                effects=(*effects(evidence), *_raised(left, evidence)),
                fixes=(
                    Fix(title=f"self.{hidden.attribute} = {container}(...)", confidence="likely"),
                ),
            ),
        )


def _left_behind(hidden: UnregisteredModule, evidence: Evidence) -> str:
    """The device on which `.to()` left these parameters, where the call that raised was given one
    of them beside a tensor of another device; "" otherwise."""
    call = evidence.crash.call if evidence.crash is not None else None
    given = call.given if call is not None else ()
    if len({one.device for one in given}) < 2:
        return ""
    name = unregistered_name(hidden.owner, hidden.attribute)
    return next((one.device for one in given if one.leaf == name), "")


def _raised(left: str, evidence: Evidence) -> Iterable[tuple[str, int | None]]:
    """The exception as an effect, where there is no other finding that tells it."""
    if (
        left
        and evidence.failure is not None
        and not any("raises" in what for what, _ in effects(evidence))
    ):
        yield (
            f"the code raises {evidence.failure.type}: {evidence.failure.first_line[:200]}",
            evidence.failure_step,
        )


def _repeated_module(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.ownership
    for repeated in facts.repeated if facts is not None else ():
        times = len(repeated.positions)
        yield Claim(
            root=("owner", "repeated", repeated.container),
            specificity=Specificity.SPECIAL,
            stage=Stage.OWNERSHIP,
            position=-2,
            finding=Finding(
                code=rule.code,
                name=rule.name,
                severity=rule.severity,
                confidence=confidence(0.6, 0.3 if repeated.registered_at else 0.0),
                title=f"one {repeated.module_type} stands {times} times in "
                f"{repeated.container or repeated.container_type}",
                explanation=f"{', '.join(repeated.positions[:4])}{' …' if times > 4 else ''} are one "
                f"object: {times} layers share one set of {repeated.parameters} weights. "
                "`[layer] * n` repeats the reference, it makes no copies.",
                culprit=Culprit(
                    kind="module",
                    module=repeated.positions[0],
                    module_type=repeated.module_type,
                    location=repeated.registered_at,
                ),
                phase="setup",
                step=None,
                evidence=(("positions", times), ("parameters shared", repeated.parameters)),
                fixes=(
                    Fix(
                        title="make one layer per position: [Layer(...) for _ in range(n)], or "
                        "copy.deepcopy(layer)",
                        confidence="likely",
                    ),
                ),
            ),
        )


def _layer_built_in_forward(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    fresh = evidence.graph.fresh_parameters if evidence.graph is not None else ()
    for line in dict.fromkeys(span for _, span in fresh if span is not None):
        made = [name for name, span in fresh if span == line]
        yield Claim(
            root=("owner", "fresh", line.file, line.line),
            specificity=Specificity.SPECIAL,
            stage=Stage.OWNERSHIP,
            position=-3,
            finding=Finding(
                code=rule.code,
                name=rule.name,
                severity=rule.severity,
                confidence=confidence(0.7, 0.6),
                title=f"{made[0].split('.')[0]} is built anew in every forward pass",
                explanation=f"{', '.join(made[:4])} are made inside the step, with fresh random values "
                "each time; no optimizer ever holds them.",
                culprit=Culprit(kind="op", location=line),
                phase="forward",
                step=evidence.graph.step if evidence.graph else None,
                effects=effects(evidence),
                fixes=(
                    Fix(
                        title="make the layer in __init__ and call it in forward",
                        confidence="likely",
                    ),
                ),
            ),
        )


def _ineffective_freeze(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    frozen = evidence.ownership.frozen if evidence.ownership is not None else None
    for path, kind, line in frozen.ineffective if frozen is not None else ():
        yield Claim(
            root=("owner", "ineffective", path),
            specificity=Specificity.SPECIAL,
            stage=Stage.OWNERSHIP,
            finding=Finding(
                code=rule.code,
                name=rule.name,
                severity=rule.severity,
                confidence=confidence(0.8, 0.4 if line else 0.0),
                title=f"requires_grad = False on a module freezes nothing: {path or kind}",
                explanation=f"{kind} has no such setting: the assignment made a plain attribute, and its "
                "parameters go on training.",
                culprit=Culprit(kind="module", module=path, module_type=kind, location=line),
                phase="setup",
                step=None,
                fixes=(
                    Fix(
                        title="call requires_grad_(False), which goes over its parameters",
                        confidence="machine",
                    ),
                ),
            ),
        )


RULES = (
    Rule(
        code="ND506",
        name="parameter-not-in-optimizer",
        severity="critical",
        summary="a trainable parameter that no optimizer holds",
        check=_parameter_not_in_optimizer,
        doc=DOCS["ND506"],
    ),
    Rule(
        code="ND507",
        name="stale-optimizer",
        severity="critical",
        summary="the optimizer holds tensors the model no longer has",
        check=_stale_optimizer,
        doc=DOCS["ND507"],
    ),
    Rule(
        code="ND508",
        name="unexpectedly-frozen",
        severity="warning",
        summary="frozen where it should train",
        check=_unexpectedly_frozen,
        doc=DOCS["ND508"],
    ),
    Rule(
        code="ND514",
        name="unregistered-module",
        severity="critical",
        summary="layers in a plain container, out of reach of parameters()",
        check=_unregistered_module,
        doc=DOCS["ND514"],
    ),
    Rule(
        code="ND515",
        name="repeated-module",
        severity="warning",
        summary="one layer several times in a container",
        check=_repeated_module,
        doc=DOCS["ND515"],
    ),
    Rule(
        code="ND516",
        name="layer-built-in-forward",
        severity="critical",
        summary="a layer built in every forward pass never learns",
        check=_layer_built_in_forward,
        doc=DOCS["ND516"],
    ),
    Rule(
        code="ND517",
        name="ineffective-freeze",
        severity="warning",
        summary="requires_grad set on a module freezes nothing",
        check=_ineffective_freeze,
        doc=DOCS["ND517"],
    ),
)
