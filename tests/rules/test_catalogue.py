"""The catalogue: complete, ordered, explained."""

from __future__ import annotations

import re
import sys
from dataclasses import fields

import pytest

from nanodoc.diagnosis.rule import Rule, matches
from nanodoc.errors import UsageError
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import LoopFacts
from nanodoc.rules.catalogue import RULES, checked, find_rule, unchecked, unjudged

FAMILIES = {
    "data": "1",
    "forward": "2",
    "backward": "3",
    "amp": "4",
    "graph": "5",
    "learning": "6",
    "crash": "7",
    "ranks": "8",
    "own": "9",
}
SECTIONS = ["What it checks", "Why it matters", "Fix", "Options", "See also"]


@pytest.mark.parametrize(
    "code", ["101", "105", "106", *map(str, range(201, 213)), "301", "302", "303", "304", "616"]
)
def test_the_first_slice_of_rules_is_there(code: str) -> None:
    assert find_rule(f"ND{code}").code == f"ND{code}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_explains_itself(rule: object) -> None:
    doc = rule.page  # type: ignore[attr-defined]  # parametrized as object for the ids
    headings = re.findall(r"^## (.+)$", doc, re.MULTILINE)
    assert [h for h in headings if h != "Example"] == SECTIONS
    for code in re.findall(r"ND\d{3}", doc):
        assert find_rule(code)


def test_codes_are_sorted_and_unique() -> None:
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))


def test_a_rule_is_found_by_code_name_and_prefix() -> None:
    rule = find_rule("nd301")
    assert find_rule("Infinite-Gradient") is rule
    assert matches(rule, ("ND3",))
    assert not matches(rule, ("ND2",))
    with pytest.raises(UsageError, match="did you mean log-of-zero"):
        find_rule("log-of-zeros")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_has_a_module_of_its_own(rule: Rule) -> None:
    """Named as the rule, in the folder of its family."""
    module = rule.check.__module__
    assert module == f"nanodoc.rules.{rule.family}.{rule.name.replace('-', '_')}"
    assert sys.modules[module].check is rule
    assert rule.code[2] == FAMILIES[rule.family]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_what_a_rule_needs_is_measured(rule: Rule) -> None:
    measured = {field.name for field in fields(Evidence) if field.metadata.get("missing")}
    assert set(rule.needs) <= measured
    if rule.needs:
        assert not list(rule.check(rule, Evidence()))


def test_what_was_not_measured_was_not_checked() -> None:
    told = {why: what for what, why in unchecked(unjudged(Evidence()))}
    assert told["the last steps were not re-run"] == (
        "examination of the last steps (data, labels, layers, loss)"
    )
    assert not any("rules" in what or "ND" in what for what in told.values())
    assert checked(Evidence()) == ("finite losses, gradients and weights",)
    assert checked(Evidence(loop=LoopFacts()), select=("ND614",)) == ("order of calls in the loop",)
    assert unchecked(unjudged(Evidence(), select=("ND3",))) == []
    assert unchecked(unjudged(Evidence(), select=("ND614",))) == [
        ("order of calls in the loop", "the loop was not watched")
    ]


def test_thresholds_are_explained() -> None:
    for rule in RULES:
        for name, threshold in rule.thresholds.items():
            assert f"{rule.name}.{name} = {threshold.default:g}" in rule.page
            assert threshold.meaning in rule.page
