"""What a snapshot holds, for a reader."""

from __future__ import annotations

from rich.text import Text

from nanodoc.facts.snapshot import HeldTensor, SnapshotFacts
from nanodoc.report.finding import folded
from nanodoc.report.layout import hung
from nanodoc.report.report import Report
from nanodoc.report.terminal import Look, printed
from nanodoc.text import clean

_FEW, _MANY = 8, 200  # tensors of a part that are shown, and with -v


def render_snapshot(report: Report, look: Look) -> str:
    """The head, then each part's tensors: those with values that are not finite come first."""
    facts = report.snapshot
    assert facts is not None
    path = clean(str(report.artifacts.get("snapshot")))
    out = Text()
    out.append(f"nanodoc {clean(report.nanodoc)} · {path} · a snapshot\n", "bold")
    for name, value in head_of(report, facts):
        out.append(f"  {name:<15}{clean(value)}\n")
    most = _MANY if look.verbose else _FEW
    for part, tensors in facts.parts:
        out.append(f"\n{clean(part)} ({len(tensors)} tensor{'' if len(tensors) == 1 else 's'})\n")
        ordered = sorted(tensors, key=lambda tensor: tensor.nonfinite == 0)
        for tensor in ordered[:most]:
            name, shape, values = row_of(tensor)
            out.append(f"  {clean(name)}  ").append(f"{shape}  ", "dim")
            out.append(f"{values}\n", "bold red" if tensor.nonfinite else "")
        if len(ordered) > most:
            more = "" if look.verbose else " (-v)"
            out.append(f"  and {len(ordered) - most} more{more}\n", "dim")
    out.append(f"\nnext: nanodoc replay {path}\n")
    return printed(hung(out, look.width), look.width, look.color)


def head_of(report: Report, facts: SnapshotFacts) -> list[tuple[str, str]]:
    """(name, text) of what is known of the step."""
    step = f"step {facts.step} of " if facts.step is not None else ""
    rows = [("from", f"{step}{report.run.entrypoint}")]
    if facts.loss is not None:
        rows.append(("loss", f"{facts.loss:.4g}"))
    if facts.grad_norm is not None:
        rows.append(("gradient norm", f"{facts.grad_norm:.4g}"))
    if report.run.amp:
        rows.append(("amp", report.run.amp))
    if facts.made_with:
        rows.append(("made with", facts.made_with))
    if facts.indices:
        rows.append(("samples", f"{folded(facts.indices, 12)} of the data set"))
    return rows


def row_of(tensor: HeldTensor) -> tuple[str, str, str]:
    """(name, dtype and shape, range) of a tensor."""
    values = ""
    if tensor.minimum is not None and tensor.maximum is not None:
        values = f"{tensor.minimum:.4g} to {tensor.maximum:.4g}"
    if tensor.nonfinite:
        values = f"{values}{', ' if values else ''}{tensor.nonfinite} not finite"
    return tensor.name or "it", f"{tensor.dtype} {list(tensor.shape)}", values
