"""The report as JUnit XML: a case for the run, for each finding, and for each thing that was not
checked, so that CI shows what was looked at."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from nanodoc.diagnosis.finding import Finding
from nanodoc.report.finding import finding_text
from nanodoc.report.report import Report
from nanodoc.report.secrets import without_secrets
from nanodoc.text import clean

# what XML 1.0 does not take, whatever is done to it
_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FAILS = ("critical", "warning")


def render_junit(report: Report) -> str:
    """Critical findings and warnings are failures, what was not checked is skipped."""
    report = without_secrets(report)
    failures = [finding for finding in report.findings if finding.severity in _FAILS]
    cases = [*report.findings, *report.accepted, *report.not_checked]
    suites = ElementTree.Element("testsuites", name="nanodoc")
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        name=_safe(report.run.entrypoint),
        tests=str(len(cases) + 1),
        failures=str(len(failures)),
        errors="0",
        skipped=str(len(report.accepted) + len(report.not_checked)),
    )
    steps = ElementTree.SubElement(suite, "testcase", classname="nanodoc", name="the training runs")
    ElementTree.SubElement(
        steps, "system-out"
    ).text = (
        f"{report.vitals.steps} of {report.run.steps_requested} steps on {_safe(report.run.device)}"
    )
    for finding in report.findings:
        _case(suite, finding)
    for one in report.accepted:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"nanodoc.{one.finding.code}",
            name=_safe(one.finding.title),
        )
        why = ": ".join(text for text in (one.place or one.by, one.reason) if text)
        ElementTree.SubElement(case, "skipped", message=_safe(f"accepted by {why}"))
    for what, why in report.not_checked:
        case = ElementTree.SubElement(
            suite, "testcase", classname="nanodoc.not-checked", name=_safe(what)
        )
        ElementTree.SubElement(case, "skipped", message=_safe(why))
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode", xml_declaration=False)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(suite: ElementTree.Element, finding: Finding) -> None:
    where = finding.culprit.location
    attributes = {"file": _safe(where.file), "line": str(where.line)} if where is not None else {}
    attributes |= {"classname": f"nanodoc.{finding.code}", "name": _safe(finding.title)}
    case = ElementTree.SubElement(suite, "testcase", attributes)
    kind = "failure" if finding.severity in _FAILS else "system-out"
    told = ElementTree.SubElement(case, kind)
    if kind == "failure":
        told.set("type", f"{finding.severity} {finding.code} {finding.name}")
        told.set("message", _safe(finding.title))
    told.text = _NO_XML.sub("", finding_text(finding, None, width=100).plain)


def _safe(text: str) -> str:
    return _NO_XML.sub("", clean(text))
