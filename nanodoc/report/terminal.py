"""The report for a reader: vital signs, then one compiler-style block per root cause."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from nanodoc.diagnosis.finding import OK, PROBLEM, SEVERITIES, SKIPPED
from nanodoc.facts.loop import OverfitFacts
from nanodoc.report.accepted import accepted_lines
from nanodoc.report.finding import STYLES, finding_line, finding_text
from nanodoc.report.frames import frames_text
from nanodoc.report.layout import WIDTH, hung
from nanodoc.report.ops import ops_text
from nanodoc.report.report import NOTHING, Report, VitalSigns
from nanodoc.report.secrets import without_secrets
from nanodoc.report.stats import stats_text
from nanodoc.text import clean

_WRITTEN = {
    "patch": "git apply {}",
    "minimal": "nanodoc replay {}",
    "tensorboard": "tensorboard --logdir {}",
    "wandb": "wandb sync {}",
    "mlflow": "mlflow ui",
}
_MARKS = {OK: ("✓", "green"), PROBLEM: ("✗", "bold red"), SKIPPED: ("·", "dim")}
_BARS = "▁▂▃▄▅▆▇█"
_SPARK = 40
_TOLD = ("UserWarning", "RuntimeWarning")
SHORT = 20
"""Runs of fewer steps are short: divergence, dead units and a loss that does not fall need more."""
_MOST_WARNINGS, _LONGEST_WARNING = 3, 160


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """How a report is shown."""

    width: int = WIDTH
    """Columns: no line is longer."""
    color: bool = False
    links: bool = False
    """The terminal follows OSC 8 links."""
    verbose: int = 0
    """1: evidence, spread, every experiment and fix; 2: frames and the whole spread, too."""


_PLAIN = Look()


def render(report: Report, look: Look = _PLAIN, *, concise: bool = False) -> str:
    """The report as text: vital signs, a block for each finding, the verdict. `concise`: a line for
    each finding."""
    report, out = without_secrets(report), Text()
    if concise:
        for finding in report.findings:
            out.append_text(finding_line(finding))
        return printed(out.append_text(_verdict(report)), look.width, look.color)
    out.append_text(_vitals(report))
    for table in report.frames:
        out.append_text(frames_text(table))
    for check in report.preflight:
        mark, style = _MARKS[check.state]
        out.append(f"  {mark} ", style).append(f"{clean(check.name):<13}{clean(check.text)}\n")
    if report.stats is not None:
        out.append_text(stats_text(report.stats))
    if report.ops:
        out.append_text(ops_text(report.ops))
    for row in report.tried:
        told = f"{clean(str(row.get('name')))}: {clean(str(row.get('outcome')))}{_loss(row)}"
        out.append("  tried ").append(f"{told}\n")
    out.append_text(_blocks(report, look))
    out.append_text(_left(report))
    out.append_text(_verdict(report))
    return printed(hung(out, look.width), look.width, look.color)


def _left(report: Report) -> Text:
    """What was not checked, and the files that were written."""
    out = Text()
    told = [
        (warning.location, warning.message)
        for warning in report.warnings
        if warning.location is not None and warning.category in _TOLD
    ]
    for where, message in told[:_MOST_WARNINGS]:
        place = f"{clean(where.file)}:{where.line}"
        out.append(f"warned at {place}: {clean(message[:_LONGEST_WARNING])}\n", "dim")
    if report.checked and report.run.command == "run" and report.verdict in (NOTHING, "warning"):
        out.append(f"checked: {', '.join(map(clean, report.checked))}\n", "dim")
    if report.not_checked:
        lines = [f"{clean(what)}: {clean(why)}" for what, why in report.not_checked]
        start = " " if len(lines) == 1 else "\n  "
        out.append(f"not checked:{start}{start.join(lines)}\n", "dim")
    out.append(_files(report), "dim")
    for key, how in _WRITTEN.items():
        path = report.artifacts.get(key)
        if path:
            out.append(f"wrote {clean(path)}: {how.format(clean(path))}\n")
    return out


def _files(report: Report) -> str:
    """The folder of what the run has left, and what is in it."""
    kept = [report.artifacts.get(key) for key in ("history", "snapshot")]
    paths = [Path(path) for path in kept if path]
    if report.run.command != "run" or not paths:
        return ""
    names = ", ".join(clean(path.name) for path in paths)
    return f"files in {clean(str(paths[0].parent))}: {names}\n"


def _loss(row: Mapping[str, Any]) -> str:
    loss = row.get("loss")
    return f" (loss {_number(float(loss))})" if loss is not None else ""


def render_findings(report: Report, look: Look) -> str:
    """The findings and the verdict, without the vital signs."""
    report = without_secrets(report)
    out = _blocks(report, look).append_text(_verdict(report))
    return printed(hung(out, look.width), look.width, look.color)


def _blocks(report: Report, look: Look) -> Text:
    out = Text()
    snapshot = report.artifacts.get("snapshot")
    for finding in report.findings:
        block = finding_text(
            finding, snapshot, width=look.width, verbose=look.verbose, links=look.links
        )
        out.append("\n").append_text(block)
    out.append("\n")
    for line in accepted_lines(report):
        out.append(f"{line}\n", "dim")
    return out


def printed(out: Text, width: int, color: bool) -> str:
    """`out` as it is written to a terminal of `width` columns; no line is wrapped."""
    buffer = io.StringIO()
    console = Console(
        force_jupyter=False,  # it would show the text itself, and give none
        file=buffer,
        force_terminal=color,
        no_color=not color,
        width=width,
        color_system="standard" if color else None,
        highlight=False,
    )
    console.print(out, soft_wrap=True, end="")  # `out` ends its own lines
    return buffer.getvalue()


def _vitals(report: Report) -> Text:
    vitals, run = report.vitals, report.run
    out = Text()
    amp = f" · amp {clean(run.amp)}" if run.amp else ""
    ranks = (
        f" · {run.world_size} ranks, this is rank {run.rank}'s course" if run.world_size > 1 else ""
    )
    attempt = f" · attempt {run.attempt}" if run.attempt > 1 else ""
    version, device = clean(report.nanodoc), clean(run.device)
    run_of = f"{clean(run.entrypoint)} · {device}{amp}{ranks}{attempt}"
    out.append(f"nanodoc {version} · {run_of}\n", "bold")
    if run.step_found:
        out.append(f"  {clean(run.step_found)}\n")
    for position, training in enumerate(run.trainings):
        out.append(f"  training {position + 1:<5} {clean(training)}\n")
    parts = micro_batches(vitals)
    stepped = f" ({vitals.optimizer_steps} optimizer steps)" if parts else ""
    # how many a script would have made is not known
    planned = "" if run.step_found else f" of {run.steps_requested}"
    out.append(f"  steps          {vitals.steps}{planned}{stepped}\n")
    if vitals.losses:
        out.append(_course("loss", vitals.losses, "per micro-batch" if parts else ""))
    elif vitals.steps and run.command == "run":
        out.append("  loss           not observed: no backward pass began at a loss\n")
    if report.learning is not None:
        out.append(f"  learning       {clean(report.learning.text)}\n")
    out.append_text(_norms(vitals, parts))
    if len(set(vitals.rates)) > 1:
        out.append(_course("learning rate", vitals.rates, f"max {_number(max(vitals.rates))}"))
    if len(vitals.update_ratios) > 1:
        ratios = vitals.update_ratios
        out.append(_course("|Δw|/|w|", ratios, f"{len(ratios)} steps sampled"))
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
        out.append(_course("loss scale", vitals.scales))
    if vitals.skipped_steps:
        out.append(f"  skipped steps  {vitals.skipped_steps} ({_skipped(vitals)})\n")
    return out


def _norms(vitals: VitalSigns, parts: bool) -> Text:
    """The gradient norm as the optimizer finds it and, where gradients are clipped, before that."""
    out, norms = Text(), vitals.grad_norms
    said = ["per micro-batch"] if parts else []
    if vitals.clip_norms:
        out.append(_course("unclipped norm", vitals.clip_norms, "of the gradients, steps sampled"))
        said = ["after clipping", *said]
    if norms:
        finite = [norm for norm in norms if math.isfinite(norm)]
        most = [f"max {_number(max(finite))}"] if finite else []
        out.append(_course("gradient norm", norms, ", ".join((*most, *said))))
    return out


def _course(name: str, values: Sequence[float], said: str = "") -> str:
    ends = f"{_number(values[0])} → {_number(values[-1])}"
    return f"  {name:<14} {sparkline(values)}  {ends}" + (f"  ({said})\n" if said else "\n")


def micro_batches(vitals: VitalSigns) -> bool:
    """The loop accumulates: its optimizer steps in every second iteration at most."""
    stepped = vitals.optimizer_steps
    taken = vitals.steps - vitals.skipped_steps
    return bool(stepped and not vitals.scales and taken >= 2 * stepped)


def _overfit(overfit: OverfitFacts) -> str:
    text = (
        f"{'fitted' if overfit.fits else 'not fitted'}: {_number(overfit.first)} → "
        f"{_number(overfit.last)} in {overfit.steps} steps"
    )
    if overfit.faster_last is not None:
        text += f" (at ten times the learning rate {_number(overfit.faster_last)})"
    if overfit.zeroed_last is None:
        return (
            text
            + " (inputs could not be told from targets, so there is no control with zeroed inputs)"
        )
    return f"{text}; with {clean(', '.join(overfit.zeroed))} zeroed {_number(overfit.zeroed_last)}"


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


def _verdict(report: Report) -> Text:
    out = Text()
    counts = {
        s: sum(f.severity == s for f in report.findings)
        for s in SEVERITIES
        if any(f.severity == s for f in report.findings)
    }
    said = [f"{number} {severity}" for severity, number in counts.items()]
    if report.accepted:
        said.append(f"{len(report.accepted)} accepted")
    style = {NOTHING: "bold green", "warning": STYLES["warning"]}.get(
        report.verdict, STYLES["critical"]
    )
    steps = report.vitals.steps
    only_info = report.verdict == NOTHING and "info" in counts
    out.append(f"verdict: {report.verdict}{' worse than info' if only_info else ''}", style)
    out.append(f" ({', '.join((*said, ''))}" if said else " (")
    out.append(f"{steps} step{'' if steps == 1 else 's'})")
    if report.verdict == NOTHING and report.run.command == "run" and steps < SHORT:
        out.append(f"; fewer than {SHORT} steps: what takes longer to show was not seen")
    if report.verdict == NOTHING and report.run.command == "run" and len(report.checked) < 2:
        out.append(f"; nothing was asked but {clean(', '.join(report.checked)) or 'that'}")
    if report.run.command == "replay" and report.run.reproduced == "no":
        out.append("; what the run met did not come back")
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
