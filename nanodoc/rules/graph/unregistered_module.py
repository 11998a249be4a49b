"""## What it checks
Modules and parameters that a module keeps in a plain list, tuple, dict, set or object, that take
part in the forward pass and get gradients, but that no optimizer holds. A frozen teacher hidden in
a list on purpose is not reported. On an accelerator, also those that `.to()` left on a different
device, if a call that uses one of them raises.

## Why it matters
parameters(), state_dict(), to() and train() skip them: they never learn, are not saved, and stay on
the CPU.

## Example
    self.layers = [nn.Linear(d, d) for _ in range(4)]

## Fix
    self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(4))

## See also
ND506 parameter-not-in-optimizer, ND515 repeated-module
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import (
    UnregisteredModule,
    unregistered_name,
)
from nanodoc.rules.base import count, effects


@rule(
    "ND514",
    "unregistered-module",
    "critical",
    "layers in a plain container, invisible to parameters()",
    needs=("ownership",),
    preflight="optimizer",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
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
            finding=rule.finding(
                confidence=confidence(0.8, 0.6, 0.3 if hidden.assigned_at else 0.0),
                title=f"{hidden.attribute} is a plain {hidden.container}: its "
                f"{', '.join(hidden.types)} are not in parameters()",
                explanation=f"{count(hidden.tensors, 'trainable tensor')} ({hidden.parameters} "
                f"values) in {hidden.owner_type}.{hidden.attribute} take part in the forward "
                f"pass{'' if left else ' and get gradients'}, but a module only registers "
                "what is assigned to it directly or is in a module container: "
                f"{'' if hidden.in_optimizer else 'no optimizer holds them, and '}state_dict() "
                "and .to() skip "
                f"them{f': they stayed on {left}, and the model is elsewhere' if left else ''}.",
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
    if len({argument.device for argument in given}) < 2:
        return ""
    name = unregistered_name(hidden.owner, hidden.attribute)
    return next((argument.device for argument in given if argument.leaf == name), "")


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
