"""The catalogue: every rule, in the order of its code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Finding
from nanodoc.diagnosis.rule import Rule, Threshold, Trial, matches
from nanodoc.errors import UsageError
from nanodoc.facts.evidence import ALWAYS, Evidence
from nanodoc.rules import (
    amp,
    backward,
    crash,
    data,
    forward,
    graph,
    learning,
    own,
    ranks,
)

_FAMILIES = (data, forward, backward, amp, graph, learning, crash, ranks, own)
RULES: tuple[Rule, ...] = tuple(
    sorted((rule for family in _FAMILIES for rule in family.RULES), key=lambda rule: rule.code)
)

MEASURED = {field.name: field.metadata for field in fields(Evidence) if field.metadata}
"""What can be measured, by the field that holds it; see `measured`."""
_BY_CODE = {rule.code: rule for rule in RULES}


def find_rule(word: str) -> Rule:
    """The rule with this code or name, in any case. Raises `UsageError` naming the nearest one."""
    wanted = word.strip().lower()
    for rule in RULES:
        if wanted in (rule.code.lower(), rule.name):
            return rule
    near = get_close_matches(
        wanted, [key for rule in RULES for key in (rule.code.lower(), rule.name)], 1, cutoff=0.3
    )
    hint = (
        f"; did you mean {near[0].upper() if near[0].startswith('nd') else near[0]}?"
        if near
        else ""
    )
    raise UsageError(f"no rule {word!r}{hint} (nanodoc rules lists them all)")


def check_codes(codes: tuple[str, ...]) -> None:
    """Raises `UsageError` for a code or prefix that stands for no rule."""
    for code in codes:
        if not any(matches(rule, (code,)) for rule in RULES):
            find_rule(code)


def all_thresholds() -> dict[str, Threshold]:
    """Every threshold by the name it has in the configuration."""
    return {
        f"{rule.name}.{name}": threshold
        for rule in RULES
        for name, threshold in rule.thresholds.items()
    }


def check_thresholds(given: Mapping[str, float], source: str) -> None:
    """Raises `UsageError` for a name that is no threshold."""
    known = all_thresholds()
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1, cutoff=0.3)
            raise UsageError(
                f"{source}: no threshold {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else "")
                + " (nanodoc explain CODE lists them)"
            )


def rule_of(finding: Finding) -> Rule:
    """The rule that made the finding."""
    return _BY_CODE[finding.code]


def can_tell(finding: Finding, trial: Trial) -> bool:
    """Experiments of this kind can tell more of the finding."""
    return trial in rule_of(finding).trials


def failed_check(finding: Finding) -> str | None:
    """The check of `--preflight` that the finding fails."""
    return rule_of(finding).preflight


def superseded(findings: Iterable[Finding]) -> frozenset[str]:
    """Codes of findings of single ranks that these, on all ranks, explain."""
    return frozenset(code for finding in findings for code in rule_of(finding).supersedes)


def unjudged(
    evidence: Evidence, select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()
) -> tuple[tuple[str, str], ...]:
    """(code, why) of each selected rule that could not judge, as what it needs was not measured."""
    found = []
    for rule in selected(select, ignore):
        missing = next((need for need in rule.needs if getattr(evidence, need) is None), None)
        if missing is not None:
            found.append((rule.code, MEASURED[missing]["missing"]))
    return tuple(found)


def unchecked(rules: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(group, why) as a report says it of the rules that could not judge."""
    groups = {told["missing"]: told["group"] for told in MEASURED.values()}
    return [(groups[why], why) for why in dict.fromkeys(why for _, why in rules)]


def checked(
    evidence: Evidence, select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """What the selected rules could ask of a run, in words: a group for each measurement that was
    made and that a rule needs."""
    rules = selected(select, ignore)
    needed = {need for rule in rules for need in rule.needs}
    groups = [
        told["group"]
        for name, told in MEASURED.items()
        if name in needed and getattr(evidence, name) is not None
    ]
    always = [ALWAYS] if any(not rule.needs for rule in rules) else []
    return (*always, *groups)


def selected(select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> list[Rule]:
    """The rules that `--select` and `--ignore` leave."""
    return [
        rule
        for rule in RULES
        if (not select or matches(rule, select)) and not matches(rule, ignore)
    ]


def claims(
    evidence: Evidence, select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()
) -> list[Claim]:
    """What every selected rule claims of the evidence."""
    return [claim for rule in selected(select, ignore) for claim in rule.check(rule, evidence)]
