"""The report as Markdown, for a job's summary or a comment on an issue."""

from __future__ import annotations

import re

from nanodoc.diagnosis.finding import Finding
from nanodoc.report.accepted import accepted_lines
from nanodoc.report.finding import CAUSES, fix_status, folded, mark_of
from nanodoc.report.fixes import changed_line
from nanodoc.report.report import Report
from nanodoc.report.secrets import without_secrets
from nanodoc.text import clean, clean_lines

BEGIN = "<!-- nanodoc report -->"
_ICONS = {"critical": "🔴", "warning": "🟡", "info": "🔵"}
# what Markdown and the HTML in it would take for more than text
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&])")
_MENTIONS = re.compile(r"([@#])(?=\w)")  # users and issues, on GitHub
_FEW = 12


def render_markdown(report: Report) -> str:
    """A heading with the verdict, a section for each finding."""
    report = without_secrets(report)
    steps = f"{report.vitals.steps} step{'' if report.vitals.steps == 1 else 's'}"
    out = [
        BEGIN,
        f"## nanodoc: {report.verdict}",
        "",
        f"{_code(report.run.entrypoint)}, {steps} on {_text(report.run.device)}"
        + ("; interrupted, this report is partial" if report.interrupted else ""),
        "",
    ]
    if report.run.trainings:
        out += [f"{n}. {_text(line)}" for n, line in enumerate(report.run.trainings, 1)]
        out.append("")
    if not report.findings:
        out += [f"Nothing {'new ' if report.accepted else ''}was found.", ""]
    if report.learning is not None:
        out += [f"Learning: {_text(report.learning.text)}", ""]
    for finding in report.findings:
        out += _section(finding)
    if told := accepted_lines(report):
        out += [*(f"- {_text(line)}" for line in told), ""]
    if report.checked and report.run.command == "run":
        out += [f"Checked: {_text(', '.join(report.checked))}", ""]
    if report.not_checked:
        out += ["<details><summary>Not checked</summary>", ""]
        out += [f"- {_text(what)}: {_text(why)}" for what, why in report.not_checked]
        out += ["", "</details>", ""]
    return "\n".join(out)


def _section(finding: Finding) -> list[str]:
    where, culprit = finding.culprit.location, finding.culprit
    icon = _ICONS[finding.severity]
    out = [f"### {icon} {finding.severity} {finding.code}: {_text(finding.title)}", ""]
    if where is not None:
        module = f", module {_code(culprit.module)}" if culprit.module else ""
        place = _code(f"{where.place}:{where.column}")
        out += [f"{place} in {_code(where.function)}{module}", ""]
        out += _block("python", where.code)
    out += [_text(finding.explanation), ""]
    if culprit.samples:
        rows = culprit.dataset_indices
        of_data = f" (data set {folded(rows, _FEW)})" if rows else ""
        word = "Sample" if len(culprit.samples) == 1 else "Samples"
        out += [f"{word} {folded(culprit.samples, _FEW)} of the batch{of_data}", ""]
    if finding.experiments:
        out += ["| tried | outcome |", "|---|---|"]
        for row in finding.experiments:
            outcome = str(row.get("outcome"))
            told = f"{mark_of(outcome) or ''} {_text(outcome)}".strip()
            out.append(f"| {_text(str(row.get('name')))} | {told} |")
        out.append("")
    if finding.cause is not None:
        out += [
            f"The experiments point to **{CAUSES[finding.cause]}**: {_text(finding.cause_why)}.",
            "",
        ]
    for fix in finding.fixes:
        out += [f"**Help** ({_text(fix_status(fix))}): {_text(fix.title)}", ""]
        change = changed_line(finding, fix)
        if change is not None:
            out += _block("diff", f"- {change[1]}\n+ {change[2]}")
        elif fix.patch:
            out += _block("python", fix.patch)
    return [
        *out,
        f"<sub>confidence {finding.confidence:.2f} · nanodoc explain {finding.code}</sub>",
        "",
    ]


def _text(text: str) -> str:
    return _MENTIONS.sub(r"\1<!-- -->", _SPECIAL.sub(r"\\\1", clean(text)))


def _code(text: str) -> str:
    """In as many backticks as end it nowhere else."""
    shown = clean(text)
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    pad = " " if shown[:1] == "`" or shown[-1:] == "`" else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}"


def _block(language: str, text: str) -> list[str]:
    lines = clean_lines(text).split("\n")
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *lines, fence, ""]
