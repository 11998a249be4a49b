"""One finding for a reader: a line, or a block as compilers print it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.style import Style
from rich.text import Text

from nanodoc.diagnosis.finding import GROWTH, USUAL_CAUSE, Finding, Fix
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import DATA, ENVIRONMENT, MATHEMATICS, PRECISION, WEIGHTS
from nanodoc.report.fixes import changed_line
from nanodoc.report.layout import MORE, Block, clipped, wrapped
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
CAUSES = {
    PRECISION: "precision",
    DATA: "the data",
    WEIGHTS: "weights that went wrong earlier",
    MATHEMATICS: "the mathematics of this op",
    ENVIRONMENT: "the environment",
}
MOST_LINES = 20
"""Of a finding without -v."""
PASSED, FAILED, NOT_RUN = "✓", "✗", "–"
_APART = (GROWTH, USUAL_CAUSE)  # evidence with a line of its own, with and without -v
_FEW = 6  # samples that are named one by one
_CODE = 3  # lines of a long statement
_IN_BRACKETS = re.compile(r" \([^()]*\)$")


def finding_line(finding: Finding) -> Text:
    """Place, severity, code and title."""
    where = finding.culprit.location
    place = f"{clean(where.file)}:{where.line}:{where.column}: " if where else ""
    line = Text(place)
    line.append(f"{finding.severity}[{finding.code}]", STYLES[finding.severity])
    return line.append(f" {clean(finding.title)}\n")


def finding_text(
    finding: Finding,
    snapshot: str | None,
    *,
    width: int = 100,
    verbose: int = 0,
    links: bool = False,
) -> Text:
    """The finding with its source, why, who, what was tried and the fix, in at most MOST_LINES
    lines; `verbose` 1 tells the evidence, the spread, all experiments and fixes, 2 the frames, too.
    `snapshot` is the file that a replay of its step reads; `links`: the terminal follows them."""
    where = finding.culprit.location
    block = Block(width, " " * len(str(where.end_line)) if where else " ", STYLES["gutter"])
    title = Text(f"{finding.severity}[{finding.code}]", STYLES[finding.severity])
    title.append(f": {clean(finding.title)}", "bold")
    block.rows(wrapped(title, width), least=1, gives=90)
    _source(block, finding, verbose, links)
    _why(block, finding, verbose)
    _tried(block, finding, verbose)
    _fixes(block, finding, verbose)
    left = len(finding.fixes) - 1
    others = f"{left} more {'fix' if left == 1 else 'fixes'} and " if left > 0 else ""
    more = "" if verbose else f" · -v for {others}the evidence"
    block.note(f"confidence {finding.confidence:.2f} · nanodoc explain {finding.code}{more}")
    if snapshot and finding.step is not None:
        block.note(f"next: nanodoc replay {clean(snapshot)}", least=0, gives=1)
    if not verbose:
        block.fit(MOST_LINES)
    return block.text()


# -- where -----------------------------------------------------------------------------------------


def _source(block: Block, finding: Finding, verbose: int, links: bool) -> None:
    """The place and the underlined source."""
    where, culprit = finding.culprit.location, finding.culprit
    kind = f", {clean(culprit.module_type)}" if culprit.module_type else ""
    # the module where a run ended is not where its optimizer was made
    at_module = culprit.module and (where is None or culprit.kind != "optimizer")
    inside = f"  (module {clean(str(culprit.module))}{kind})" if at_module else ""
    arrow = Text(f"{block.indent}--> ", STYLES["gutter"])
    if where is None:
        named = culprit.kind if culprit.kind != "op" else ""
        what = culprit.parameter or culprit.batch_path or culprit.op or named
        if what or inside:
            place = Text(f"{clean(what)}{inside}")
            block.rows(_hung(arrow, place, block.width), least=1, gives=80)
        return
    place = Text(f"{clean(where.file)}:{where.line}:{where.column}", _linked(where, links))
    place.append(f" in {clean(where.function)}{inside}", "")
    block.rows(_hung(arrow, place, block.width), least=1, gives=80)
    block.rows([Text(f"{block.indent} |", STYLES["gutter"])], least=0, gives=2)
    lines = where.code.split("\n")
    most = len(lines) if verbose or len(lines) <= _CODE + 1 else _CODE
    for offset, line in enumerate(lines[:most]):
        number = f"{where.line + offset:>{len(block.indent)}}"
        shown = " " * where.indent + clean(line.expandtabs(4) if offset else line)
        first = where.column - 1
        last = where.end_column - 1 if where.end_line == where.line else len(shown)
        room = block.width - len(block.indent) - 3
        shown, first, last = clipped(shown, first if offset == 0 else 0, last, room)
        row = Text().append(f"{number} | ", STYLES["gutter"]).append(shown)
        block.rows([row], least=1 if offset == 0 else 0, gives=20 - offset)
        if offset == 0:
            marks = Text().append(f"{block.indent} | ", STYLES["gutter"])
            marks.append(" " * first + "^" * max(1, last - first), STYLES[finding.severity])
            block.rows([marks])
    if most < len(lines):
        rest = f"{block.indent} | {MORE} {len(lines) - most} more lines of this statement"
        block.rows([Text(rest, STYLES["gutter"])], least=0, gives=15)


def _hung(head: Text, text: Text, width: int) -> list[Text]:
    """`text` behind `head`, its further lines below its first."""
    rows = wrapped(text, width - len(head.plain))
    below = " " * len(head.plain)
    return [
        Text().append_text(head if number == 0 else Text(below)).append_text(row)
        for number, row in enumerate(rows)
    ]


def _linked(where: SourceSpan, links: bool) -> Style | str:
    """A link to the file, as terminals and editors follow it (OSC 8)."""
    if not links or not Path(where.file).is_file():
        return ""
    return Style(link=f"file://{quote(os.path.abspath(where.file))}#L{where.line}")


# -- why and who -----------------------------------------------------------------------------------


def _why(block: Block, finding: Finding, verbose: int) -> None:
    said = {label: clean(str(value)) for label, value in finding.evidence if label in _APART}
    if GROWTH in said:
        block.note(f"{GROWTH}: {said[GROWTH]}", most=None if verbose else 2, gives=12)
    block.note(_situation(finding), least=0, gives=30)
    block.note(clean(finding.explanation), most=None if verbose else 6, least=2, gives=40)
    if USUAL_CAUSE in said:
        most = None if verbose else 3
        block.note(f"{USUAL_CAUSE}: {said[USUAL_CAUSE]}", most=most, least=1, gives=42)
    block.note(_who(finding, verbose), most=None if verbose else 2, gives=35)
    if verbose:
        _evidence(block, finding, verbose)


def _evidence(block: Block, finding: Finding, verbose: int) -> None:
    evidence = [
        f"{clean(label)} {_value(value)}"
        for label, value in finding.evidence
        if value is not None and label not in _APART and not label.startswith("frame ")
    ]
    if evidence:
        block.note("evidence: " + ", ".join(evidence))
    frames = [value for label, value in finding.evidence if label.startswith("frame ")]
    if verbose > 1 or len(frames) > 1:
        for value in frames:
            block.note(f"at {clean(str(value))}")
    block.note(_path(finding, all_of_it=verbose > 1))
    if finding.effects:
        block.note("effects: " + "; ".join(clean(what) for what, _ in finding.effects))


def _situation(finding: Finding) -> str:
    parts = []
    if finding.step is not None:
        parts.append(f"step {finding.step}")
    if finding.phase != "script":  # the explanation says so
        parts.append(finding.phase)
    if (finding.culprit.node or finding.culprit.op) and finding.culprit.kind != "optimizer":
        parts.append(finding.culprit.node or str(finding.culprit.op))
    return clean(", ".join(parts))


def _who(finding: Finding, verbose: int) -> str:
    samples, rows = finding.culprit.samples, finding.culprit.dataset_indices
    if not samples:
        return f"sample {rows[0]} of the data set" if len(rows) == 1 else ""
    few = 60 if verbose else _FEW
    text = f"sample{'s' if len(samples) > 1 else ''} {folded(samples, few)} of the batch"
    return text + (f" (data set {folded(rows, few)})" if rows else "")


def folded(numbers: tuple[int, ...], few: int) -> str:
    """`3, 5, 9 and 12 more`."""
    shown = ", ".join(map(str, numbers[:few]))
    return f"{shown} and {len(numbers) - few} more" if len(numbers) > few else shown


def _path(finding: Finding, *, all_of_it: bool) -> str:
    """The way from the cause to the symptom: op, line, module and magnitude."""
    if len(finding.chain) < 2:
        return ""
    most = len(finding.chain) if all_of_it else 6
    steps = []
    inside: str | None = ""
    for link in finding.chain[:most]:
        bad = f" {link.nonfinite_out} bad" if link.nonfinite_out else ""
        name = link.op.split(".")[1] if "." in link.op else link.op
        place = f"line {link.line}" if link.line else ""
        if link.module and link.module != inside:  # said where it changes
            place += f"{' ' if place else ''}in module {clean(link.module)}"
        inside = link.module
        steps.append(f"{clean(name)}{f' ({place})' if place else ''}{bad}")
    return "spread: " + " → ".join(steps) + (" → …" if len(finding.chain) > most else "")


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return clean(str(value))


# -- what was tried --------------------------------------------------------------------------------


def mark_of(outcome: str) -> str | None:
    """The mark of an experiment's outcome; None where it has to be told in words."""
    if outcome.startswith("not run"):
        return NOT_RUN
    if outcome.startswith(("passes", "the step succeeds")):
        return PASSED
    return FAILED if outcome.startswith(("fails", "ends in the same way")) else None


def _tried(block: Block, finding: Finding, verbose: int) -> None:
    cause = f" → {CAUSES[finding.cause]}" if finding.cause is not None else ""
    if verbose:
        for experiment in finding.experiments:
            outcome = clean(str(experiment.get("outcome")))
            mark = mark_of(outcome)
            shown = f"{mark} {outcome}" if mark is not None else outcome
            block.note(f"tried {clean(str(experiment.get('name')))}: {shown}")
        if finding.cause is not None:
            why = clean(finding.cause_why)
            block.note(f"the experiments point to {CAUSES[finding.cause]}: {why}")
        return
    told = [_in_short(row) for row in finding.experiments]
    ran = [row for row in told if not row.endswith(NOT_RUN)]
    left_out = len(told) - len(ran)
    line = " · ".join(ran)
    if left_out:
        line += f"{' · ' if line else ''}{left_out} not run"
    if line or cause:
        block.note(f"tried: {line}{cause}", most=4, gives=38)


def _in_short(experiment: Mapping[str, Any]) -> str:
    """Its name without what is in brackets, and its mark."""
    name, outcome = clean(str(experiment.get("name"))), clean(str(experiment.get("outcome")))
    mark = mark_of(outcome)
    short = _IN_BRACKETS.sub("", name)
    if len(short) > 40:
        short = f"{short[:39].rstrip(' ,')}{MORE}"
    # a space that does not break keeps the mark beside its name
    return f"{short}\u00a0{mark}" if mark is not None else f"{short}: {outcome[:60]}"


# -- what to change --------------------------------------------------------------------------------


def _fixes(block: Block, finding: Finding, verbose: int) -> None:
    for fix in finding.fixes if verbose else finding.fixes[:1]:
        _help(block, finding, fix, verbose)


def _help(block: Block, finding: Finding, fix: Fix, verbose: int) -> None:
    change = changed_line(finding, fix)
    status = clean(fix_status(fix))
    told = Text("help", STYLES["help"]).append(f" ({status}): {clean(fix.title)}", "")
    several = fix.patch is not None and "\n" in fix.patch
    if change is None and fix.patch and not several:
        told.append(f": {clean(fix.patch)}")
    block.note(told, most=None if verbose else 5, least=3, gives=45)
    room = block.width - len(block.indent) - 3
    if change is None:
        if several and fix.patch is not None:  # a piece of code to write somewhere
            rows = []
            for line in fix.patch.splitlines():
                shown, _, _ = clipped(clean(line), 0, 0, room)
                row = Text().append(f"{block.indent} | ", STYLES["gutter"])
                rows.append(row.append(shown, STYLES["added"]))
            block.rows(rows, least=len(rows) if verbose else min(3, len(rows)), gives=25)
        return
    where, old, new = change
    pairs = zip(old, new, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))
    rows = []
    for sign, line, style in (("-", old, STYLES["removed"]), ("+", new, STYLES["added"])):
        shown = " " * where.indent + clean(line)
        shown, _, _ = clipped(shown, where.indent + same, len(shown), room)
        row = Text().append(f"{where.line:>{len(block.indent)}} {sign} ", STYLES["gutter"])
        rows.append(row.append(shown, style))
    block.rows(rows)


def fix_status(fix: Fix) -> str:
    """Whether the fix was tried, and what came of it."""
    if fix.outcome:
        return f"verified by replay: {fix.outcome}" if fix.verified else f"tried: {fix.outcome}"
    if not fix.verified:
        if fix.verified is None:
            return (
                "stays finite, but there is no healthy loss to compare with"
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
    whose = f"{fix.loss_of} loss" if fix.loss_of else "the loss"
    return f"verified by replay, {whose} " + (
        f"moves by {fix.loss_change:.0e}" if fix.loss_change else "stays the same"
    )
