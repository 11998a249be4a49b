"""One finding for a reader: a line, or a block as compilers print it."""

from __future__ import annotations

from rich.text import Text

from nanodoc.diagnosis.finding import GROWTH, Finding, Fix
from nanodoc.facts.trials import DATA, ENVIRONMENT, MATHEMATICS, PRECISION, WEIGHTS
from nanodoc.report.fixes import changed_line
from nanodoc.report.report import FLOAT32, FLOAT64, UNMEASURED
from nanodoc.text import clean

STYLES = {
    "critical": "bold red",
    "warning": "bold yellow",
    "info": "bold blue",
    "help": "bold cyan",
    "gutter": "blue",
    "removed": "red",
    "added": "green",
}
_CAUSES = {
    PRECISION: "precision",
    DATA: "the data at hand",
    WEIGHTS: "weights that went wrong earlier",
    MATHEMATICS: "the mathematics of this op",
    ENVIRONMENT: "the environment",
}
_SHOWN_EVIDENCE = 8


def finding_line(finding: Finding) -> Text:
    """Place, severity, code and title."""
    where = finding.culprit.location
    place = f"{clean(where.file)}:{where.line}:{where.column}: " if where else ""
    line = Text(place)
    line.append(f"{finding.severity}[{finding.code}]", STYLES[finding.severity])
    return line.append(f" {clean(finding.title)}\n")


def finding_text(finding: Finding, snapshot: str | None) -> Text:
    """The finding with its source, its evidence and its fixes. `snapshot` is the file that a replay
    of its step reads, where one was written."""
    out = Text()
    out.append(f"{finding.severity}[{finding.code}]", STYLES[finding.severity])
    out.append(f": {clean(finding.title)}\n", "bold")
    gutter = _source(out, finding)
    growth = next((value for label, value in finding.evidence if label == GROWTH), None)
    if growth is not None:
        _note(out, gutter, f"{GROWTH}: {clean(str(growth))}")
    _note(out, gutter, _situation(finding))
    _note(out, gutter, clean(finding.explanation))
    _note(out, gutter, _who(finding))
    evidence = [
        f"{label} {_value(value)}"
        for label, value in finding.evidence
        if value is not None and label != GROWTH and not label.startswith("frame ")
    ]
    if evidence:
        _note(out, gutter, "evidence: " + ", ".join(evidence[:_SHOWN_EVIDENCE]))
    for label, value in finding.evidence:
        if (
            label.startswith("frame ")
            and len([1 for key, _ in finding.evidence if key.startswith("frame ")]) > 1
        ):
            _note(out, gutter, f"at {clean(str(value))}")
    path = _path(finding)
    if path:
        _note(out, gutter, path)
    if finding.effects:
        _note(out, gutter, "effects: " + "; ".join(clean(what) for what, _ in finding.effects))
    for experiment in finding.experiments:
        _note(out, gutter, f"tried {experiment.get('name')}: {experiment.get('outcome')}")
    if finding.cause is not None:
        _note(
            out,
            gutter,
            f"the experiments point to {_CAUSES[finding.cause]}: {clean(finding.cause_why)}",
        )
    for fix in finding.fixes:
        _help(out, gutter, finding, fix)
    _note(out, gutter, f"confidence {finding.confidence:.2f} · nanodoc explain {finding.code}")
    if snapshot and finding.step is not None:
        _note(out, gutter, f"next: nanodoc replay {clean(snapshot)}")
    return out


def _source(out: Text, finding: Finding) -> str:
    """The place and the underlined source; returns the gutter's indent."""
    where, culprit = finding.culprit.location, finding.culprit
    gutter = " " * len(str(where.end_line)) if where else " "
    module = culprit.module
    inside = (
        f"  (module {clean(module)}{f', {culprit.module_type}' if culprit.module_type else ''})"
        if module
        else ""
    )
    if where is None:
        what = (
            culprit.parameter
            or culprit.batch_path
            or culprit.op
            or (culprit.kind if culprit.kind != "op" else "")
        )
        if not what and not inside:
            return gutter
        out.append(f"{gutter}--> ", STYLES["gutter"]).append(f"{clean(what)}{inside}\n")
        return gutter
    out.append(f"{gutter}--> ", STYLES["gutter"])
    out.append(
        f"{clean(where.file)}:{where.line}:{where.column} in {clean(where.function)}{inside}\n"
    )
    out.append(f"{gutter} |\n", STYLES["gutter"])
    lines = where.code.split("\n")
    for offset, line in enumerate(lines):
        shown = " " * where.indent + clean(line.expandtabs(4) if offset else line)
        out.append(f"{where.line + offset:>{len(gutter)}} | ", STYLES["gutter"]).append(
            shown + "\n"
        )
        if offset == 0:
            last = where.end_column - 1 if where.end_line == where.line else len(shown)
            marks = max(1, last - (where.column - 1))
            out.append(f"{gutter} | ", STYLES["gutter"]).append(
                " " * (where.column - 1) + "^" * marks + "\n", STYLES[finding.severity]
            )
    return gutter


def _situation(finding: Finding) -> str:
    parts = []
    if finding.step is not None:
        parts.append(f"step {finding.step}")
    parts.append(finding.phase)
    if finding.culprit.node or finding.culprit.op:
        parts.append(finding.culprit.node or str(finding.culprit.op))
    return ", ".join(parts)


def _who(finding: Finding) -> str:
    samples, rows = finding.culprit.samples, finding.culprit.dataset_indices
    if not samples:
        return f"sample {rows[0]} of the data set" if len(rows) == 1 else ""
    text = (
        f"sample{'s' if len(samples) > 1 else ''} {', '.join(map(str, samples[:12]))}"
        f"{', …' if len(samples) > 12 else ''} of the batch"
    )
    if rows:
        text += f" (data set {', '.join(map(str, rows[:12]))}{', …' if len(rows) > 12 else ''})"
    return text


def _path(finding: Finding) -> str:
    """The way from the cause to the symptom: op, line and magnitude."""
    if len(finding.chain) < 2:
        return ""
    steps = []
    for link in finding.chain[:6]:
        bad = f" {link.nonfinite_out} bad" if link.nonfinite_out else ""
        steps.append(
            f"{link.op.split('.')[1] if '.' in link.op else link.op}"
            f"{f' (line {link.line})' if link.line else ''}{bad}"
        )
    return "spread: " + " → ".join(steps) + (" → …" if len(finding.chain) > 6 else "")


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return clean(str(value))


def _note(out: Text, gutter: str, text: str) -> None:
    if text:
        out.append(f"{gutter} = ", STYLES["gutter"]).append(text + "\n")


def _help(out: Text, gutter: str, finding: Finding, fix: Fix) -> None:
    out.append(f"{gutter} = ", STYLES["gutter"]).append("help", STYLES["help"]).append(
        f" ({_status(fix)}): {clean(fix.title)}"
    )
    change = changed_line(finding, fix)
    if change is None and fix.patch and "\n" in fix.patch:  # a piece of code to write somewhere
        out.append("\n")
        for line in fix.patch.splitlines():
            out.append(f"{gutter} | ", STYLES["gutter"]).append(clean(line) + "\n", STYLES["added"])
        return
    if change is None:
        out.append(f": {clean(fix.patch)}\n" if fix.patch else "\n")
        return
    where, old, new = change
    out.append("\n")
    for sign, line, style in (("-", old, STYLES["removed"]), ("+", new, STYLES["added"])):
        out.append(f"{where.line:>{len(gutter)}} {sign} ", STYLES["gutter"]).append(
            " " * where.indent + clean(line) + "\n", style
        )


def _status(fix: Fix) -> str:
    if fix.outcome:
        return f"verified by replay: {fix.outcome}" if fix.verified else f"tried: {fix.outcome}"
    if not fix.verified:
        if fix.verified is None:
            return (
                "stays finite, but there is nothing healthy to measure it on"
                if fix.loss_of == UNMEASURED
                else "not tried"
            )
        return "tried, does not help"
    if fix.loss_change is None:
        return "verified by replay"
    if fix.loss_of in (FLOAT32, FLOAT64):
        dtype = fix.loss_of.removesuffix("'s")
        return "verified by replay, " + (
            f"loss {fix.loss_change:.0e} from {dtype}'s"
            if fix.loss_change
            else f"loss as in {dtype}"
        )
    return f"verified by replay, {fix.loss_of} loss " + (
        f"moves by {fix.loss_change:.0e}" if fix.loss_change else "stays the same"
    )
