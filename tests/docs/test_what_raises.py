"""The table of what raises each rule, held against the code."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from nanodoc.diagnosis.rule import Rule
from nanodoc.rules.catalogue import RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "what-raises.md"
ROW = re.compile(r"\| (ND\d+) \| (\S+) \| (\w+) \| ([\w ]+) \|")
ALLOWED = {
    "ND130": "the parts of a batch are told apart by their paths",
    "ND802": "a rank's message is taken apart",
}
"""Rules that match texts which are no names of the user's, and raise by something else."""


def rows() -> list[tuple[str, ...]]:
    return ROW.findall(PAGE.read_text(encoding="utf-8"))


def imports_of(rule: Rule) -> set[str]:
    tree = ast.parse(inspect.getsource(inspect.getmodule(rule.check)))  # type: ignore[arg-type]  # it has one
    found = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    return found | {
        node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    }


def test_it_lists_every_rule_and_its_severity() -> None:
    assert [row[:3] for row in rows()] == [(r.code, r.name, r.severity) for r in RULES]


def test_it_uses_the_words_that_it_explains() -> None:
    words = set(re.findall(r"(?m)^\| (an? \w+|the \w+|calls) \| (?!\w+ \| )", PAGE.read_text()))
    assert len(words) == 8
    assert {row[3] for row in rows()} <= words


def test_what_only_a_name_raises_is_an_info() -> None:
    assert {row[2] for row in rows() if row[3] == "a name"} == {"info"}


def test_a_rule_that_matches_texts_is_raised_by_an_exception_or_is_an_info() -> None:
    by = {row[0]: row[3] for row in rows()}
    matching = [rule for rule in RULES if "re" in imports_of(rule)]
    assert matching
    for rule in matching:
        words = rule.severity == "info" or by[rule.code] == "an exception" or rule.code in ALLOWED
        assert words, f"{rule.code} matches texts: what raises it?"


def test_no_rule_reads_the_users_source() -> None:
    reading = (
        "linecache",
        "nanodoc.trace.parsed",
        "nanodoc.trace.files",
        "nanodoc.examination.lines_that",
    )
    assert {rule.code for rule in RULES if imports_of(rule) & {*reading}} == set()
