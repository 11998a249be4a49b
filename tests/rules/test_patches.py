"""Proposed rewrites parse, and say what was meant."""

from __future__ import annotations

import pytest

from nanodoc.evidence import OpFacts, SourceSpan
from nanodoc.rules.patches import log_softmax, on_argument, on_denominator


def op(code: str) -> OpFacts:
    span = SourceSpan(file="t.py", line=1, end_line=1, column=1, end_column=1 + len(code), function="f", code=code)
    return OpFacts(index=0, op="aten.sqrt.default", phase="forward", module=None, module_type=None, location=span)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("torch.sqrt(x.mean(1))", "torch.sqrt(x.mean(1) + 1e-12)"),
        ("x.pow(2).sum().sqrt()", "(x.pow(2).sum() + 1e-12).sqrt()"),
        ("torch.sqrt(a * b)", "torch.sqrt(a * b + 1e-12)"),
        ("foo(x)", None),
        ("norm(", None),
    ],
)
def test_an_argument_is_guarded(code: str, expected: str | None) -> None:
    assert on_argument(op(code), ("sqrt",), "{x} + 1e-12") == expected


def test_a_power_a_division_and_a_softmax() -> None:
    assert on_argument(op("x.mean(1) ** 0.5"), ("pow",), "{x}.clamp_min(1e-6)") == "x.mean(1).clamp_min(1e-06) ** 0.5"
    assert on_denominator(op("a / (b + c)"), "{x}.clamp_min(1)") == "a / (b + c).clamp_min(1)"
    assert log_softmax(op("torch.log(F.softmax(z, dim=-1))")) == "F.log_softmax(z, dim=-1)"
    assert log_softmax(op("z.softmax(-1).log()")) == "z.log_softmax(-1)"
    assert log_softmax(op("torch.log(p)")) is None
