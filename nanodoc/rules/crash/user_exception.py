"""## What it checks
An exception raised by `build()`, by the data, or by a step, that no more specific rule explains.
The traceback is trimmed to the frames of your own code. For a message in nanodoc's knowledge base,
the finding gives its usual cause and a fix.

## Why it matters
The run cannot go on. If a NaN led to the exception (a comparison with NaN is false and sends code
down the wrong branch), the origin of the NaN is reported instead and the exception is listed as its
effect.

## Example
    RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x16 and 32x4)

## Fix
As the message says; the innermost line of your own code is underlined.

## See also
ND304 degenerate-decomposition, ND208 degenerate-statistics
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import OBSERVED, Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import ChangeInput
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.explain.knowledge import Explanation
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.rules.crash.failure_claims import (
    at_earlier_call,
    failure_claim,
    known,
    place_in,
    usual_cause,
)

# they say what is missing, and nothing else can have raised them
_SAYING_ALL = (
    "ModuleNotFoundError",
    "FileNotFoundError",
    "NotADirectoryError",
    "IsADirectoryError",
    "PermissionError",
    "SyntaxError",
    "IndentationError",
    "TabError",
    "NameError",
    "UnboundLocalError",
)

# messages that name what does not match what
_NAMED = (
    "view-not-contiguous",
    "checkpoint-size-mismatch",
    "checkpoint-missing-keys",
    "checkpoint-unexpected-keys",
)


@rule(
    "ND709",
    "user-exception",
    "critical",
    "the training code raised an exception",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if failure is None:
        return
    title = f"{failure.type}: {failure.first_line}" if failure.first_line else failure.type
    told = known(failure)
    missing = _missing_key(failure) if told is None else None
    means, fixes = missing or (told.means if told is not None else "", _fixes(failure, told))
    place = place_in(failure.phase, evidence.failure_step)
    claim = failure_claim(
        rule,
        evidence,
        title=title,
        explanation=f"The code raised {failure.type} {place}. {means}".strip(),
        fixes=fixes,
        extra=usual_cause(told, failure),
        specificity=Specificity.FALLBACK,
    )
    message = told.id if told is not None else ""
    if failure.type in _SAYING_ALL or message in _NAMED or missing is not None:
        claim = replace(claim, finding=replace(claim.finding, confidence=OBSERVED))
    yield at_earlier_call(claim, evidence)


def _fixes(failure: Failure, told: Explanation | None) -> list[Fix]:
    if told is None:
        return []
    where = failure.frames[-1] if failure.frames else None
    if told.id == "view-not-contiguous" and where is not None:
        remedy = ChangeInput(location=where, op="view", position=0, method="contiguous")
        title = "reshape() copies the values where view() cannot"
        patch = _reshaped(where.expression)
        return [Fix(title=title, patch=patch, confidence="likely", remedy=remedy)]
    title, *further = told.fix.strip().splitlines()
    code = [line for text in further for line in text.split("; ") if _is_code(line)]
    patch = "\n".join(code) if title.endswith(":") and code else None
    return [Fix(title=title.rstrip(" :"), patch=patch, confidence="maybe")]


def _is_code(line: str) -> bool:
    try:
        return isinstance(ast.parse(line).body[0], (ast.Assign, ast.Expr))
    except (SyntaxError, IndexError):
        return False


def _reshaped(expression: str | None) -> str | None:
    """`x.view(n, -1)` as `x.reshape(n, -1)`."""
    call = _parsed(expression)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr != "view":
        return None
    call.func.attr = "reshape"
    return ast.unparse(call)


def _missing_key(failure: Failure) -> tuple[str, list[Fix]] | None:
    """(what it means, what helps) for a key that the user's own line looks up in vain."""
    where = failure.frames[-1] if failure.frames else None
    looked_up = _parsed(where.expression) if where is not None else None
    if failure.type != "KeyError" or failure.torch_function or not failure.raised_by_torch:
        return None
    if not isinstance(looked_up, ast.Subscript):
        return None
    owner, key = ast.unparse(looked_up.value), failure.first_line
    fix = f"add the key {key}, or read it with a default: {owner}.get({key}, ...)"
    return f"{owner} has no key {key}.", [Fix(title=fix, confidence="maybe")]


def _parsed(expression: str | None) -> ast.expr | None:
    try:
        return ast.parse(expression or "", mode="eval").body
    except SyntaxError:
        return None
