"""The module frames of a step as a table: smallest and largest |value| of every weight, input and
output."""

from __future__ import annotations

import math

from rich.text import Text

from nanodoc.facts.frames import Frame, FrameTable, FrameTensor
from nanodoc.facts.ops import OpFacts
from nanodoc.text import clean

_HEAD = "   abs min   abs max  headroom  to zero  non-finite"
_PATH = 8  # points of the path that are shown
_FAR = 1e4  # a larger headroom is left blank
_NEAR = 4.0  # a headroom this small is marked


def frames_text(table: FrameTable) -> Text:
    """One table: the path of the largest value first, then every call in the order in which the
    calls ended."""
    out = Text(f"\nframes of step {table.step} ({table.why})\n", "bold")
    path = _path(table)
    if path:
        out.append("  growth: ").append(path + "\n", "bold")
    if table.left_out:
        out.append(f"  … {table.left_out} earlier frames (--max-frames)\n")
    if not table.frames:
        return out.append("  no module was called\n")
    out.append(_HEAD + "\n")
    bad = table.first_bad()
    for frame in table.frames:
        out.append_text(_frame(frame, is_bad=frame is bad))
    if table.ops:
        out.append(f"\n  the ops of {clean(table.module or 'the module')}\n", "bold").append(
            _HEAD + "\n"
        )
        for op in table.ops:
            out.append_text(_op(op))
    return out


def _path(table: FrameTable) -> str:
    points = table.path()
    shown = points if len(points) <= _PATH else (points[0], *points[-_PATH + 1 :])
    return " → ".join(f"{_number(value)} ({clean(module)})" for module, value in shown)


def _frame(frame: Frame, *, is_bad: bool) -> Text:
    name = (
        f'probe "{clean(frame.module)}"'
        if not frame.module_type
        else f"{clean(frame.module) or 'the model'} {clean(frame.module_type)}"
    )
    out = Text(f"{'':52}{name}\n", "bold red" if is_bad else "bold")
    for tensor in frame.tensors:
        out.append_text(_tensor(tensor))
    return out


def _tensor(t: FrameTensor) -> Text:
    flushed = f"{t.flushed:7.1%}" if t.flushed is not None else ""
    return _line(
        t.absmin,
        t.absmax,
        t.headroom,
        flushed,
        t.nan,
        t.inf,
        f"{clean(t.role)}  {t.dtype} {list(t.shape)}",
    )


def _op(op: OpFacts) -> Text:
    where = f"  line {op.location.line}" if op.location is not None else ""
    out = Text()
    for facts in op.outputs[:1]:
        frame = FrameTensor(role="", dtype=facts.dtype, shape=facts.shape, absmax=facts.absmax)
        low = 0.0 if facts.zeros else None
        out.append_text(
            _line(
                low,
                math.inf if facts.inf else facts.absmax,
                None if facts.nonfinite else frame.headroom,
                "",
                facts.nan,
                facts.inf,
                f"{op.op}{where}  {facts.dtype} {list(facts.shape)}",
            )
        )
    return out


def _line(
    low: float | None,
    high: float | None,
    headroom: float | None,
    flushed: str,
    nan: int,
    inf: int,
    what: str,
) -> Text:
    bad = ", ".join(f"{number} {kind}" for number, kind in ((nan, "nan"), (inf, "inf")) if number)
    room = "" if headroom is None or headroom >= _FAR else f"{headroom:.2g}x"
    style = "red" if bad else "yellow" if headroom is not None and headroom < _NEAR else ""
    return Text(
        f"{_number(low):>10}{_number(high):>10}{room:>10}{flushed:>9}  {bad:<12} {what}\n", style
    )


def _number(value: float | None) -> str:
    return (
        ""
        if value is None
        else f"{value:.2e}"
        if value and math.isfinite(value) and not 1e-2 <= abs(value) < 1e3
        else f"{value:.3g}"
    )
