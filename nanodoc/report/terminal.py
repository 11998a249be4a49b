"""The report for a reader: vital signs, then one compiler-style block per root cause."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from nanodoc.diagnosis.finding import GROWTH, OK, PROBLEM, SEVERITIES, SKIPPED, Finding, Fix
from nanodoc.facts.loop import OverfitFacts
from nanodoc.facts.trials import DATA, ENVIRONMENT, MATHEMATICS, PRECISION, WEIGHTS
from nanodoc.report.fixes import changed_line
from nanodoc.report.frames import frames_text
from nanodoc.report.ops import ops_text
from nanodoc.report.report import FLOAT32, FLOAT64, UNMEASURED, Report, VitalSigns
from nanodoc.report.stats import stats_text
from nanodoc.text import clean

_STYLES = {
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
_WRITTEN = {
    "patch": "git apply {}",
    "minimal": "nanodoc replay {}",
    "tensorboard": "tensorboard --logdir {}",
}
_BARS = "▁▂▃▄▅▆▇█"
_SPARK = 40
_SHOWN_EVIDENCE = 8
_TOLD = ("UserWarning", "RuntimeWarning")
_MOST_WARNINGS, _LONGEST_WARNING = 3, 160


def render(report: Report, *, width: int = 120, color: bool = False, concise: bool = False) -> str:
    """The report as text of at most `width` columns where its own lines are concerned; the user's
    code is never wrapped."""
    out = Text()
    if concise:
        for finding in report.findings:
            out.append_text(_concise(finding))
    else:
        out.append_text(_vitals(report))
        for table in report.frames:
            out.append_text(frames_text(table))
        for check in report.preflight:
            mark, style = {OK: ("✓", "green"), PROBLEM: ("✗", "bold red"), SKIPPED: ("·", "dim")}[
                check.state
            ]
            out.append(f"  {mark} ", style).append(f"{check.name:<13}{clean(check.text)}\n")
        if report.stats is not None:
            out.append_text(stats_text(report.stats))
        if report.ops:
            out.append_text(ops_text(report.ops))
        for row in report.tried:
            out.append("  tried ").append(
                f"{clean(str(row.get('name')))}: {clean(str(row.get('outcome')))}{_loss(row)}\n"
            )
        out.append_text(_blocks(report))
        out.append_text(_left(report))
    out.append_text(_verdict(report))
    return printed(out, width, color)


def _left(report: Report) -> Text:
    """What was not checked, and the files that were written."""
    out = Text()
    for one in [
        one for one in report.warnings if one.location is not None and one.category in _TOLD
    ][:_MOST_WARNINGS]:
        place = (
            f"{clean(one.location.file)}:{one.location.line}" if one.location is not None else ""
        )
        out.append(f"warned at {place}: {clean(one.message[:_LONGEST_WARNING])}\n", "dim")
    if report.not_checked:
        out.append(
            "not checked: "
            + "; ".join(f"{clean(what)} ({clean(why)})" for what, why in report.not_checked)
            + "\n",
            "dim",
        )
    for key, how in _WRITTEN.items():
        path = report.artifacts.get(key)
        if path:
            out.append(f"wrote {clean(path)}: {how.format(clean(path))}\n")
    return out


def _loss(row: Mapping[str, Any]) -> str:
    loss = row.get("loss")
    return f" (loss {_number(float(loss))})" if loss is not None else ""


def render_findings(report: Report, *, width: int = 120, color: bool = False) -> str:
    """The findings and the verdict, without the vital signs."""
    return printed(_blocks(report).append_text(_verdict(report)), width, color)


def _blocks(report: Report) -> Text:
    out = Text()
    for finding in report.findings:
        out.append("\n")
        out.append_text(_block(finding, report))
    return out.append("\n")


def printed(out: Text, width: int, color: bool) -> str:
    """`out` as it is written to a terminal of `width` columns; no line is wrapped."""
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        force_terminal=color,
        no_color=not color,
        width=width,
        color_system="standard" if color else None,
        highlight=False,
    )
    console.print(out, soft_wrap=True, end="")  # `out` ends its own lines
    return buffer.getvalue()


def _concise(finding: Finding) -> Text:
    where = finding.culprit.location
    place = f"{clean(where.file)}:{where.line}:{where.column}: " if where else ""
    line = Text(place)
    line.append(f"{finding.severity}[{finding.code}]", _STYLES[finding.severity])
    return line.append(f" {clean(finding.title)}\n")


def _vitals(report: Report) -> Text:
    vitals, run = report.vitals, report.run
    out = Text()
    amp = f" · amp {run.amp}" if run.amp else ""
    ranks = (
        f" · {run.world_size} ranks, this is rank {run.rank}'s course" if run.world_size > 1 else ""
    )
    out.append(
        f"nanodoc {report.nanodoc} · {clean(run.entrypoint)} · {run.device}{amp}{ranks}\n", "bold"
    )
    losses, norms = vitals.losses, vitals.grad_norms
    out.append(f"  steps          {vitals.steps} of {run.steps_requested}\n")
    if losses:
        out.append(
            f"  loss           {sparkline(losses)}  {_number(losses[0])} → {_number(losses[-1])}\n"
        )
    if norms:
        finite = [norm for norm in norms if math.isfinite(norm)]
        out.append(
            f"  gradient norm  {sparkline(norms)}  {_number(norms[0])} → {_number(norms[-1])}"
        )
        out.append(f"  (max {_number(max(finite))})\n" if finite else "\n")
    if len(set(vitals.rates)) > 1:
        out.append(
            f"  learning rate  {sparkline(vitals.rates)}  {_number(vitals.rates[0])} → "
            f"{_number(vitals.rates[-1])}"
        )
        out.append(f"  (max {_number(max(vitals.rates))})\n")
    if len(vitals.update_ratios) > 1:
        ratios = vitals.update_ratios
        out.append(
            f"  |Δw|/|w|       {sparkline(ratios)}  {_number(ratios[0])} → {_number(ratios[-1])}  "
            f"({len(ratios)} steps sampled)\n"
        )
    if vitals.samples_per_second is not None:
        waiting = (
            f", {vitals.load_share:.0%} of the time waiting for data"
            if vitals.load_share is not None
            else ""
        )
        memory = f", peak memory {vitals.peak_memory / 2**20:.0f} MiB" if vitals.peak_memory else ""
        out.append(
            f"  throughput     {_number(vitals.samples_per_second)} samples/s{waiting}{memory}\n"
        )
    if report.overfit is not None:
        out.append(f"  one batch      {_overfit(report.overfit)}\n")
    if vitals.scales:
        out.append(
            f"  loss scale     {sparkline(vitals.scales)}  {_number(vitals.scales[0])} → "
            f"{_number(vitals.scales[-1])}\n"
        )
    if vitals.skipped_steps:
        out.append(f"  skipped steps  {vitals.skipped_steps} ({_skipped(vitals)})\n")
    return out


def _overfit(one: OverfitFacts) -> str:
    text = (
        f"{'fitted' if one.fits else 'not fitted'}: {_number(one.first)} → {_number(one.last)} in "
        f"{one.steps} steps"
    )
    if one.faster_last is not None:
        text += f" (at ten times the learning rate {_number(one.faster_last)})"
    if one.zeroed_last is None:
        return (
            text
            + " (inputs could not be told from targets, so there is no control with zeroed inputs)"
        )
    return f"{text}; with {clean(', '.join(one.zeroed))} zeroed {_number(one.zeroed_last)}"


def _skipped(vitals: VitalSigns) -> str:
    """Skips in the first steps of a run with a GradScaler are healthy, and are said to be."""
    if not vitals.scales:
        return "left out by the training code"
    first, all_of_them = vitals.calibration_skips, vitals.calibration_skips == vitals.skipped_steps
    if first == len(vitals.scales):
        return "every one: no loss scale was found that works"
    if all_of_them:
        return "the loss scale was calibrating, which is healthy"
    return (
        f"{first} while the loss scale was calibrating, {vitals.skipped_steps - first} later"
        if first
        else "by the GradScaler"
    )


def sparkline(values: Sequence[float], width: int = _SPARK) -> str:
    """`values` as block characters, at most `width` of them; `×` where a value is not finite."""
    if len(values) > width:
        # the last value of each of `width` equal stretches, so that the end of the run is always
        # shown
        values = [values[(i + 1) * len(values) // width - 1] for i in range(width)]
    finite = [v for v in values if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    span = high - low
    if not math.isfinite(span):
        span = 0.0
    return "".join(
        "×" if not math.isfinite(v) else _BARS[int((v - low) / span * 7) if span > 0 else 0]
        for v in values
    )


def _number(value: float) -> str:
    return f"{value:.4g}"


def _block(finding: Finding, report: Report) -> Text:
    out = Text()
    out.append(f"{finding.severity}[{finding.code}]", _STYLES[finding.severity])
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
    snapshot = report.artifacts.get("snapshot")
    if snapshot and finding.step is not None:
        _note(out, gutter, f"next: nanodoc replay {clean(str(snapshot))}")
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
        out.append(f"{gutter}--> ", _STYLES["gutter"]).append(f"{clean(what)}{inside}\n")
        return gutter
    out.append(f"{gutter}--> ", _STYLES["gutter"])
    out.append(
        f"{clean(where.file)}:{where.line}:{where.column} in {clean(where.function)}{inside}\n"
    )
    out.append(f"{gutter} |\n", _STYLES["gutter"])
    lines = where.code.split("\n")
    for offset, line in enumerate(lines):
        shown = " " * where.indent + clean(line.expandtabs(4) if offset else line)
        out.append(f"{where.line + offset:>{len(gutter)}} | ", _STYLES["gutter"]).append(
            shown + "\n"
        )
        if offset == 0:
            last = where.end_column - 1 if where.end_line == where.line else len(shown)
            marks = max(1, last - (where.column - 1))
            out.append(f"{gutter} | ", _STYLES["gutter"]).append(
                " " * (where.column - 1) + "^" * marks + "\n", _STYLES[finding.severity]
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
        out.append(f"{gutter} = ", _STYLES["gutter"]).append(text + "\n")


def _help(out: Text, gutter: str, finding: Finding, fix: Fix) -> None:
    out.append(f"{gutter} = ", _STYLES["gutter"]).append("help", _STYLES["help"]).append(
        f" ({_status(fix)}): {clean(fix.title)}"
    )
    change = changed_line(finding, fix)
    if change is None and fix.patch and "\n" in fix.patch:  # a piece of code to write somewhere
        out.append("\n")
        for line in fix.patch.splitlines():
            out.append(f"{gutter} | ", _STYLES["gutter"]).append(
                clean(line) + "\n", _STYLES["added"]
            )
        return
    if change is None:
        out.append(f": {clean(fix.patch)}\n" if fix.patch else "\n")
        return
    where, old, new = change
    out.append("\n")
    for sign, line, style in (("-", old, _STYLES["removed"]), ("+", new, _STYLES["added"])):
        out.append(f"{where.line:>{len(gutter)}} {sign} ", _STYLES["gutter"]).append(
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


def _verdict(report: Report) -> Text:
    out = Text()
    counts = {
        s: sum(f.severity == s for f in report.findings)
        for s in SEVERITIES
        if any(f.severity == s for f in report.findings)
    }
    summary = (
        ", ".join(f"{number} {severity}" for severity, number in counts.items()) or "nothing found"
    )
    style = {"healthy": "bold green", "warning": _STYLES["warning"]}.get(
        report.verdict, _STYLES["critical"]
    )
    out.append(f"verdict: {report.verdict}", style).append(
        f" ({summary} in {report.vitals.steps} step{'' if report.vitals.steps == 1 else 's'})"
    )
    if report.interrupted:
        out.append("; interrupted, this report is partial")
    first = next(iter(report.findings), None)
    snapshot = report.artifacts.get("snapshot")
    if first is not None:
        following = (
            f"nanodoc replay {clean(str(snapshot))}"
            if snapshot
            else f"nanodoc explain {first.code}"
        )
        out.append(f"; next: {following}")
    return out.append("\n")
