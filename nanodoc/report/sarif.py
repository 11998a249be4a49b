"""The report as SARIF 2.1.0, for code scanning: the rules with their pages, and a result for each
finding with its region, its way from the cause to the loss as a code flow, and its change as a
fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nanodoc.diagnosis.finding import Finding, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.source import SourceSpan
from nanodoc.report.finding import fix_status
from nanodoc.report.fixes import changed_line
from nanodoc.report.report import Accepted, Report
from nanodoc.report.secrets import without_secrets
from nanodoc.strict_json import written
from nanodoc.text import clean, clean_lines

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {"critical": "error", "warning": "warning", "info": "note"}
# GitHub refuses files with more: docs.github.com, "SARIF support for code scanning"
_MOST_RESULTS, _MOST_FLOW = 5000, 100
_LONGEST = 1024  # characters of a description that GitHub shows
_DESCRIBE = ("What it checks", "Why it matters")
SITE = "https://nanodoc-torch.github.io/nanodoc/"
"""The documentation, whose rules/ND301/ is the page of a rule."""


def render_sarif(report: Report, rules: Iterable[Rule] = ()) -> str:
    """One run with one tool. Paths are relative to the working folder where they lie below it.
    `rules` is the catalogue, whose texts describe the rules of the findings."""
    shown = without_secrets(report)
    # a change is applied as it stands: none is offered for a line with a credential hidden in it
    findings = [
        finding if finding.culprit.location == own.culprit.location else replace(finding, fixes=())
        for finding, own in zip(shown.findings, report.findings, strict=True)
    ][:_MOST_RESULTS]
    report = shown
    file, _, name = report.run.entrypoint.split(" -- ")[0].rpartition(":")
    entry = file or name
    accepted = [
        replace(one, finding=replace(one.finding, fixes=()))
        for one in report.accepted[: _MOST_RESULTS - len(findings)]
    ]
    by_code = {
        finding.code: finding
        for finding in (*(one.finding for one in reversed(accepted)), *reversed(findings))
    }
    codes, known = sorted(by_code), {rule.code: rule for rule in rules}
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "nanodoc",
                "version": report.nanodoc,
                "rules": [_rule(by_code[code], known.get(code)) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"description": {"text": "the working folder"}}},
        "invocations": [
            {
                "executionSuccessful": not report.interrupted,
                "properties": {"entrypoint": clean(report.run.entrypoint)},
            }
        ],
        "results": [
            *(_result(finding, codes.index(finding.code), entry) for finding in findings),
            *(
                _result(one.finding, codes.index(one.finding.code), entry) | _suppressed(one)
                for one in accepted
            ),
        ],
    }
    return written({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n"


def _suppressed(one: Accepted) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": "inSource" if one.by == "comment" else "external"}
    if why := clean(": ".join(text for text in (one.place, one.reason) if text)):
        told["justification"] = why
    return {"suppressions": [told]}


def _rule(finding: Finding, rule: Rule | None) -> dict[str, Any]:
    short = finding.name.replace("-", " ")
    command = f"nanodoc explain {finding.code}"
    told = f"{command} prints the causes and the fix."
    page = f"{SITE}rules/{finding.code}/"
    return {
        "id": finding.code,
        "name": "".join(word.capitalize() for word in finding.name.split("-")),
        "shortDescription": {"text": short},
        "fullDescription": {"text": _described(rule) if rule is not None else short},
        "helpUri": page,
        "help": {
            "text": f"{told} See also {page}",
            "markdown": f"{told.replace(command, f'`{command}`')} See also <{page}>",
        },
        "defaultConfiguration": {"level": _LEVELS[finding.severity]},
    }


def _described(rule: Rule) -> str:
    """The rule's summary, and the first sections of its page: what it checks, why it matters."""
    sections = [part.partition("\n") for part in rule.doc.split("## ")[1:]]
    told = [" ".join(text.split()) for name, _, text in sections if name in _DESCRIBE]
    first = rule.summary.split(maxsplit=1)[0]
    summary = (first.capitalize() if first.islower() and first.isalpha() else first) + (
        rule.summary[len(first) :]
    )
    text = " ".join([f"{summary}.", *told])
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1].rstrip()}…"


def _result(finding: Finding, index: int, entry: str) -> dict[str, Any]:
    where = finding.culprit.location
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{clean(finding.title)}. {clean(finding.explanation)}"},
        "partialFingerprints": {"nanodoc/v1": finding.fingerprint},
        "rank": round(100 * finding.confidence, 1),
        "properties": {"step": finding.step, "phase": finding.phase},
    }
    if where is None:
        # code scanning takes no result without a location, and then none of the others
        file = {"artifactLocation": _artifact(entry), "region": {"startLine": 1}}
        return result | {"locations": [{"physicalLocation": file}]}
    result["locations"] = [{"physicalLocation": _physical(where)}]
    if flow := _flow(finding, where):
        result["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    fixes = [change for fix in finding.fixes if (change := _fix(finding, fix)) is not None]
    if fixes:
        result["fixes"] = fixes
    return result


def _physical(where: SourceSpan, *, line: int | None = None) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": line or where.line}
    if line is None:
        region |= {
            "startColumn": where.column,
            "endLine": where.end_line,
            "endColumn": where.end_column,
            "snippet": {"text": clean_lines(where.code)},
        }
    return {"artifactLocation": _artifact(where.file), "region": region}


def _artifact(name: str) -> dict[str, Any]:
    path = Path(name)
    try:
        relative = path.resolve().relative_to(Path.cwd()) if path.is_absolute() else path
    except (OSError, ValueError, RuntimeError):
        return {"uri": "file://" + quote(name, errors="replace")}
    return {"uri": quote(relative.as_posix(), errors="replace"), "uriBaseId": "SRCROOT"}


def _flow(finding: Finding, where: SourceSpan) -> list[dict[str, Any]]:
    steps = []
    for link in finding.chain[:_MOST_FLOW]:
        bad = f", {link.nonfinite_out} elements not finite" if link.nonfinite_out else ""
        line = f", line {link.line}" if link.line else ""
        module = f" in module {clean(link.module)}" if link.module else ""
        text = f"{clean(link.op)}{module}{line}{bad}"
        # which file a line is of is known for the statement that is blamed; a step without a place
        # is taken by no viewer
        if link.line is not None and where.line <= link.line <= where.end_line:
            place = _physical(where, line=link.line)
            steps.append({"location": {"message": {"text": text}, "physicalLocation": place}})
    return steps if len(steps) > 1 else []


def _fix(finding: Finding, fix: Fix) -> dict[str, Any] | None:
    change = changed_line(finding, fix)
    if change is None:
        return None
    where, _, after = change
    region = {"startLine": where.line, "endLine": where.line, "startColumn": where.indent + 1}
    replaced = {"deletedRegion": region, "insertedContent": {"text": after}}
    region["endColumn"] = where.indent + len(where.code) + 1
    return {
        "description": {"text": f"{clean(fix.title)} ({clean(fix_status(fix))})"},
        "artifactChanges": [
            {"artifactLocation": _artifact(where.file), "replacements": [replaced]}
        ],
    }
