"""The page: what the template is given, and the template rendered."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from nanodoc.diagnosis.finding import OK, PROBLEM, SKIPPED, ChainLink, Finding, Fix
from nanodoc.report.accepted import accepted_lines
from nanodoc.report.finding import CAUSES, fix_status, folded, mark_of
from nanodoc.report.fixes import changed_line
from nanodoc.report.grad_tree import WORDS
from nanodoc.report.page import plot
from nanodoc.report.page.charts import bars, curves, failing_steps, history_of, maps
from nanodoc.report.page.source import Line, lines_of
from nanodoc.report.report import GradGraph, GradParameter, Report
from nanodoc.report.secrets import without_secrets
from nanodoc.report.snapshot import head_of, row_of
from nanodoc.text import clean

_HERE = Path(__file__).parent
_MOST_PARAMETERS = 20_000
_FEW = 12  # samples that are named
_OF_NUMBERS = ("ND2", "ND3", "ND4", "ND6")  # a report that was read holds no families
_CHECKS = {OK: ("✓", "passed"), PROBLEM: ("✗", "problem"), SKIPPED: ("–", "not checked")}


def render_html(report: Report, *, own: bool = True, history: Path | None = None) -> str:
    """One file without references to others. `own`: the report was made here; of one that was not,
    only source files below the working folder are read, for the lines around a finding. `history`:
    where the run's steps are logged."""
    report = without_secrets(report)
    steps = history_of(history)
    shown = [_shown(finding, own=own) for finding in report.findings]
    failing = failing_steps(
        # a run that goes on after step 0 did not fail there
        finding.step
        for finding in report.findings
        if finding.step or report.vitals.steps < 2
    )
    context: dict[str, Any] = {
        "report": report,
        "findings": shown,
        "accepted": accepted_lines(report),
        "curves": curves(steps, failing),
        "frame": plot,
        "maps": maps(steps),
        "held": _held(report),
        "layers": bars(report.magnitudes) if _shows_layers(report) else None,
        "failing": failing,
        "facts": _facts(report),
        "checks": [(*_CHECKS[check.state], check.name, check.text) for check in report.preflight],
        "tree": _tree(report.graph) if report.graph is not None else None,
        "style": Markup((_HERE / "page.css").read_text(encoding="utf-8")),
    }
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    # the browser runs this script and nothing else, whatever a name may hold
    context["script"] = Markup(script)
    context["hash"] = f"'sha256-{_hash(script)}'"
    environment = Environment(
        loader=PackageLoader("nanodoc.report.page", "."),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["in_words"] = lambda state: WORDS.get(state, state)
    environment.filters["clean"] = lambda value: clean(str(value))
    return environment.get_template("page.html").render(context)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownFix:
    title: str
    status: str
    details: str
    """What its trial came to."""
    verified: bool | None
    before: str | None
    after: str | None
    code: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownFinding:
    """A finding as the template takes it."""

    finding: Finding
    place: str
    lines: list[Line]
    samples: str
    experiments: list[tuple[str, str, str, str]]
    """(name, mark, class, outcome)"""
    cause: str
    fixes: list[ShownFix]
    in_module: bool
    """The module is where it happened."""
    op: str
    untried: str

    def size(self, link: ChainLink) -> int:
        """How many elements an op's output has."""
        return math.prod(link.shape)


def _shown(finding: Finding, *, own: bool) -> ShownFinding:
    culprit, where = finding.culprit, finding.culprit.location
    rows = culprit.dataset_indices
    word = "sample" if len(culprit.samples or rows) == 1 else "samples"
    of_data = f"{folded(rows, _FEW)} of the data set" if rows else ""
    samples = f"{word} {of_data}" if rows else ""
    if culprit.samples:
        samples = f"{word} {folded(culprit.samples, _FEW)} of the batch"
        samples += f" ({of_data})" if rows else ""
    return ShownFinding(
        finding=finding,
        place=f"{where.place}:{where.column}" if where is not None else "",
        lines=lines_of(where, files=own or is_below(Path(where.file))) if where is not None else [],
        samples=samples.strip(),
        experiments=[_experiment(row) for row in finding.experiments],
        cause=CAUSES.get(finding.cause, "") if finding.cause is not None else "",
        fixes=[_fix(finding, fix) for fix in finding.fixes],
        in_module=bool(culprit.module) and (where is None or culprit.kind != "optimizer"),
        op="" if culprit.kind == "optimizer" else culprit.node or culprit.op or "",
        untried=_untried(finding),
    )


def _untried(finding: Finding) -> str:
    """What is said where there were no experiments."""
    if finding.experiments:
        return ""
    if any(fix.verified is not None or fix.outcome for fix in finding.fixes):
        return "Only the change above: the code that ran shows the cause."
    return "No experiment was needed: the code that ran shows the cause."


def is_below(file: Path, *folders: Path) -> bool:
    """A file below the working folder, or below another, and no link out of it."""
    try:
        whole = file.resolve()
        return any(whole.is_relative_to(folder.resolve()) for folder in (Path(), *folders))
    except (OSError, ValueError, RuntimeError):
        return False


def _experiment(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    outcome = str(row.get("outcome"))
    mark = mark_of(outcome)
    kind = {"✓": "good", "✗": "bad"}.get(mark or "", "other")
    return str(row.get("name")), mark or "", kind, outcome


def _fix(finding: Finding, fix: Fix) -> ShownFix:
    change = changed_line(finding, fix)
    status, _, details = fix_status(fix).partition(": " if fix.outcome else ", ")
    return ShownFix(
        title=fix.title,
        status=status,
        details=details,
        verified=fix.verified,
        before=change[1] if change is not None else None,
        after=change[2] if change is not None else None,
        code=fix.patch if change is None else None,
    )


def _shows_layers(report: Report) -> bool:
    """The layers' outputs matter to a finding about numbers."""
    first = next(iter(report.findings), None)
    bad = any(layer.nonfinite for layer in report.magnitudes)
    return bad or (first is not None and first.code.startswith(_OF_NUMBERS))


def _held(report: Report) -> dict[str, Any] | None:
    """What a snapshot holds: its head, and (part, rows) of its tensors, those with values that are
    not finite first."""
    facts = report.snapshot
    if facts is None:
        return None
    parts = []
    for name, tensors in facts.parts:
        ordered = sorted(tensors, key=lambda tensor: tensor.nonfinite == 0)
        parts.append((name, [(*row_of(tensor), tensor.nonfinite > 0) for tensor in ordered]))
    return {"head": head_of(report, facts), "parts": parts}


def _facts(report: Report) -> list[tuple[str, str]]:
    run, vitals = report.run, report.vitals
    rows = [
        ("nanodoc", report.nanodoc),
        ("entrypoint", run.entrypoint),
        ("command", run.command),
        ("torch", run.torch),
        ("Python", run.python),
        ("device", run.device),
        ("mixed precision", run.amp or "off"),
        ("seed", "not set" if run.seed is None else str(run.seed)),
        ("steps", f"{vitals.steps} of {run.steps_requested}"),
        ("step", run.step_found),
        *((f"training {number}", line) for number, line in enumerate(run.trainings, 1)),
        ("learning", report.learning.text if report.learning is not None else ""),
        ("replay", run.reproduced.replace("_", " ")),
        ("ranks", str(run.world_size) if run.world_size > 1 else ""),
        ("attempt", str(run.attempt) if run.attempt > 1 else ""),
        ("peak memory", f"{vitals.peak_memory / 2**20:.0f} MiB" if vitals.peak_memory else ""),
    ]
    rows += [(name, path) for name, path in report.artifacts.items() if path]
    return [(name, value) for name, value in rows if value]


@dataclass(slots=True)
class Branch:
    """A module of the tree of parameters, with what is below it."""

    name: str
    kind: str
    branches: dict[str, Branch]
    leaves: list[GradParameter]

    @property
    def count(self) -> int:
        return len(self.leaves) + sum(branch.count for branch in self.branches.values())

    @property
    def without(self) -> int:
        """Parameters that get no gradient."""
        own = sum(leaf.state != "gradient" for leaf in self.leaves)
        return own + sum(branch.without for branch in self.branches.values())


def _tree(graph: GradGraph) -> Branch:
    root = Branch("", graph.modules.get("", "model"), {}, [])
    for parameter in graph.parameters[:_MOST_PARAMETERS]:
        *modules, _ = parameter.name.split(".")
        at, path = root, ""
        for name in modules[:40]:
            path = f"{path}.{name}" if path else name
            at = at.branches.setdefault(name, Branch(name, graph.modules.get(path, ""), {}, []))
        at.leaves.append(parameter)
    return root
