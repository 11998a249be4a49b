"""## What it checks
Every load_state_dict of `build()`: how many names matched. Reported if fewer than half of the
checkpoint's and fewer than half of the module's names matched, nothing filled the rest, and either
no name matched at all or more would match with a different prefix. A new head on a loaded backbone,
or a backbone from a larger checkpoint, is fine.

## Why it matters
Training starts from random weights, without a message.

## Example
    model.load_state_dict(torch.load("ddp.pt"), strict=False)     # every name begins with "module."

## Fix
    state = {key.removeprefix("module."): value for key, value in state.items()}

## See also
ND209 uninitialised-parameter, ND703 checkpoint-device
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.crash import LoadFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count, location_key

# Below half of both sides a load did not do what a load is for; most of a backbone fits, or most of
# a checkpoint is used, where it did.
_LITTLE = 0.5

_SHOWN = 3


@rule(
    "ND710",
    "unloaded-checkpoint",
    "critical",
    "load_state_dict(strict=False) that matched little or nothing",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for load in evidence.loads:
        if (
            not load.given
            or not load.left
            or load.matched >= _LITTLE * load.own
            or load.matched >= _LITTLE * load.given
        ):
            continue
        # else a part was meant, as far as anybody can tell
        if not load.matched or load.would_match > load.matched:
            yield _unloaded(rule, load)


def _unloaded(rule: Rule, load: LoadFacts) -> Claim:
    matched = "none" if not load.matched else f"only {load.matched}"
    mended = ""
    fixes = [
        Fix(
            title="load with strict=True, which raises if a name does not match",
            confidence="likely",
        )
    ]
    if load.would_match > load.matched:
        how = (
            f"prefix {load.prefix!r} removed"
            if not load.instead
            else f"prefix {load.instead!r} in place of {load.prefix!r}"
            if load.prefix
            else f"prefix {load.instead!r} added"
        )
        mended = f" With the {how}, {load.would_match} of them match by name and shape."
        fixes.insert(
            0,
            Fix(title="rename the keys before loading", patch=_renamed(load), confidence="likely"),
        )
    return Claim(
        root=("load", *location_key(load.location)),
        specificity=Specificity.FAMILY,
        finding=rule.finding(
            confidence=confidence(
                0.6,
                0.5 if not load.matched else 0.2,
                0.5 if load.would_match > load.matched else 0.0,
            ),
            title=f"of {count(load.given, 'tensor')} in the checkpoint, {matched} went into "
            f"{load.module_type}",
            explanation="load_state_dict(strict=False) does not report names that do not match: "
            f"{count(len(load.left), 'parameter')} of {load.own} tensors keep their initial "
            f"values.{mended}",
            culprit=Culprit(
                kind="op" if load.location else "parameter",
                parameter=load.left[0],
                module_type=load.module_type,
                location=load.location,
            ),
            phase="setup",
            step=None,
            evidence=(
                ("in the checkpoint", ", ".join(load.unexpected[:_SHOWN])),
                ("in the model", ", ".join(load.left[:_SHOWN])),
                ("matched", f"{load.matched} of {load.own}"),
            ),
            fixes=tuple(fixes),
        ),
    )


def _renamed(load: LoadFacts) -> str | None:
    """The call with its keys renamed, where the span is that call."""
    try:
        call = ast.parse(
            (load.location.expression if load.location else None) or "", mode="eval"
        ).body
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call) or not call.args:
        return None
    bare = f"key.removeprefix({load.prefix!r})" if load.prefix else "key"
    change = (
        f"key.replace({load.prefix!r}, {load.instead!r}, 1)"
        if load.prefix and load.instead
        else f"{load.instead!r} + key"
        if load.instead
        else bare
    )
    state = ast.unparse(call.args[0])
    state = (
        state
        if isinstance(call.args[0], (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        else f"({state})"
    )
    call.args[0] = ast.parse(
        f"{{{change}: value for key, value in {state}.items()}}", mode="eval"
    ).body
    return ast.unparse(call)
