"""Proposed rewrites parse, and say what was meant."""

from __future__ import annotations

import pytest

from nanodoc.facts.ops import OpFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.rewrite import (
    log_softmax,
    number_in_call,
    on_argument,
    on_keyword,
    sum_over_count,
    sum_over_kept,
    unbiased_where_many,
    with_keyword,
)


def op(code: str, name: str = "sqrt") -> OpFacts:
    span = SourceSpan(
        file="t.py", line=1, end_line=1, column=1, end_column=1 + len(code), function="f", code=code
    )
    return OpFacts(
        index=0,
        op=f"aten.{name}.default",
        phase="forward",
        module=None,
        module_type=None,
        location=span,
    )


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
    assert on_argument(op(code), "{x} + 1e-12") == expected


def test_a_power_a_division_and_a_softmax() -> None:
    assert (
        on_argument(op("x.mean(1) ** 0.5", "pow"), "{x}.clamp_min(1e-6)")
        == "x.mean(1).clamp_min(1e-06) ** 0.5"
    )
    assert (
        on_argument(op("a / (b + c)", "div"), "{x}.clamp_min(1)", position=1)
        == "a / (b + c).clamp_min(1)"
    )
    assert on_argument(op("a * b", "div"), "{x}.clamp_min(1)", position=1) is None
    assert log_softmax(op("torch.log(F.softmax(z, dim=-1))")) == "F.log_softmax(z, dim=-1)"
    assert log_softmax(op("z.softmax(-1).log()")) == "z.log_softmax(-1)"
    assert log_softmax(op("torch.log(p)")) is None


def test_what_would_be_computed_twice_is_not_written_twice() -> None:
    template = "{x} - {x}.amax(-1, keepdim=True)"
    assert (
        on_argument(op("torch.exp(scores)", "exp"), template)
        == "torch.exp(scores - scores.amax(-1, keepdim=True))"
    )
    assert on_argument(op("torch.exp(self.net(x))", "exp"), template) is None


def test_other_arguments_and_keywords() -> None:
    assert (
        on_argument(op("F.huber_loss(net(x), y)", "huber_loss"), "{x}.nan_to_num(0.0)", position=1)
        == "F.huber_loss(net(x), y.nan_to_num(0.0))"
    )
    assert (
        with_keyword(op("ctc(a, b, c, d)", "_ctc_loss"), "zero_infinity", True)
        == "ctc(a, b, c, d, zero_infinity=True)"
    )
    assert on_keyword(
        op("self.attn(x, x, x, key_padding_mask=pad)"),
        ("key_padding_mask",),
        "{x} & ~{x}.all(-1, keepdim=True)",
    ) == ("self.attn(x, x, x, key_padding_mask=pad & ~pad.all(-1, keepdim=True))")
    assert on_keyword(op("self.attn(x, x, x)"), ("key_padding_mask",), "{x}") is None


def test_means_and_deviations_of_too_little() -> None:
    assert (
        sum_over_count(op("loss[mask].mean()", "mean"))
        == "loss[mask].sum() / mask.sum().clamp(min=1)"
    )
    assert sum_over_count(op("loss.mean()", "mean")) is None
    assert (
        sum_over_kept(op("F.cross_entropy(z, y)", "nll_loss_forward"), -100)
        == "F.cross_entropy(z, y, reduction='sum') / (y != -100).sum().clamp(min=1)"
    )
    assert sum_over_kept(op("F.cross_entropy(z, y, weight=w)", "nll_loss_forward"), -100) is None
    assert unbiased_where_many(op("adv.std()", "std")) == "adv.std(unbiased=adv.numel() > 1)"
    assert unbiased_where_many(op("adv.std(0)", "std")) is None


def test_a_number_is_changed_letter_for_letter() -> None:
    found = op("torch.optim.SGD( net.parameters(), lr=1e-3,  momentum=0.9)").location
    assert found is not None
    assert (
        number_in_call(found, "lr", "0.0001")
        == "torch.optim.SGD( net.parameters(), lr=0.0001,  momentum=0.9)"
    )
    assert number_in_call(found, "weight_decay", "0") is None
