"""What the rules about failing graphs share: the claim on a failure whose two ends are known, and
rewrites of a line."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Unpack

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import graph_failure
from nanodoc.facts.ops import OpFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import Told, effects, location_key


def family_of(evidence: Evidence) -> str | None:
    """The family of the failure that ended the run, None if it is no failure of the graph."""
    return graph_failure(evidence.failure.message) if evidence.failure is not None else None


def both_ends(
    rule: Rule,
    evidence: Evidence,
    where: SourceSpan | None,
    *,
    op: OpFacts | None = None,
    other: tuple[str, SourceSpan | None] | None = None,
    parameter: str | None = None,
    fixes: tuple[Fix, ...] = (),
    sure: float = 0.5,
    **told: Unpack[Told],
) -> Claim:
    """The claim of `rule` on a failing step, at the one end that is to be changed; `other` is the
    other end, with its label."""
    failure = evidence.failure
    assert failure is not None
    notes: list[tuple[str, object]] = []
    if other is not None and other[1] is not None:
        span = other[1]
        notes.append((other[0], f"{span.place}: {span.code.splitlines()[0]}"))
    verified = any(fix.verified for fix in fixes)
    return Claim(
        root=location_key(where) or ("failure",),
        specificity=Specificity.SPECIAL,
        finding=rule.finding(
            confidence=confidence(0.5, sure, 0.4 if where else 0.0, 0.6 if verified else 0.0),
            **told,
            culprit=Culprit(
                kind="op",
                op=op.op if op else failure.torch_function,
                module=op.module if op else None,
                module_type=op.module_type if op else None,
                parameter=parameter,
                location=where,
            ),
            phase="forward" if op is not None else failure.phase,
            step=evidence.failure_step,
            evidence=tuple(notes),
            effects=effects(evidence),
            experiments=tuple(
                {"name": "the fix", "outcome": "the step succeeds", "loss": None}
                for fix in fixes
                if fix.verified
            ),
            fixes=fixes,
        ),
    )


def one_end(rule: Rule, evidence: Evidence, *, sure: float, **told: Unpack[Told]) -> Claim:
    """The claim of `rule` on a failing step whose cause was not seen when the step was run again,
    at the line that raised."""
    claim = both_ends(rule, evidence, innermost(evidence), sure=sure, **told)
    return replace(claim, specificity=Specificity.FAMILY)


def innermost(evidence: Evidence) -> SourceSpan | None:
    """The innermost line of the user's in the traceback."""
    failure = evidence.failure
    return failure.frames[-1] if failure is not None and failure.frames else None


_SIGNS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
}


def detached_assignment(span: SourceSpan | None) -> str | None:
    """`self.h = h` as `self.h = h.detach()`; None where the line is more than that."""
    tree = _statement(span)
    if (
        not isinstance(tree, ast.Assign)
        or len(tree.targets) != 1
        or not isinstance(tree.value, (ast.Name, ast.Attribute))
    ):
        return None
    return f"{ast.unparse(tree.targets[0])} = {ast.unparse(tree.value)}.detach()"


def out_of_place(span: SourceSpan | None) -> str | None:
    """`x /= n` as `x = x / n`, `x.mul_(2)` as `x = x.mul(2)`; None where the line is neither, or
    writes to a part of `x`."""
    tree = _statement(span)
    whole = (ast.Name, ast.Attribute)
    if isinstance(tree, ast.AugAssign) and isinstance(tree.target, whole):
        assert span is not None
        target, sign = ast.unparse(tree.target), _SIGNS.get(type(tree.op))
        value = ast.get_source_segment(span.code.strip(), tree.value)
        if not isinstance(
            tree.value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
        ):
            value = f"({value})"
        return f"{target} = {target} {sign} {value}" if sign is not None else None
    call = tree.value if isinstance(tree, ast.Expr) else None
    if (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, whole)
    ):
        name = call.func.attr
        if name.endswith("_") and not name.endswith("__"):
            call.func.attr = name.rstrip("_")
            return f"{ast.unparse(call.func.value)} = {ast.unparse(call)}"
    return None


def _statement(span: SourceSpan | None) -> ast.stmt | None:
    """The one statement of a line, None where the line is only a piece of one."""
    try:
        body = ast.parse(span.code.strip()).body if span is not None else []
    except SyntaxError:
        return None
    return body[0] if len(body) == 1 else None
