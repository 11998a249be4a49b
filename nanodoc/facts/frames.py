"""Facts about every module call of one step: the ranges of its weights, inputs and outputs. Plain,
frozen, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.facts.ops import GrowthPoint, OpFacts
from nanodoc.facts.source import SourceSpan

LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameTensor:
    """One tensor of a call. `absmin` and `absmax` are NaN where an element is NaN, and None for a
    tensor without such a range."""

    role: str
    """"weight", "input[0]", "mask" (a keyword), "output.logits", …"""
    dtype: str
    shape: tuple[int, ...]
    absmin: float | None = None
    absmax: float | None = None
    nan: int = 0
    inf: int = 0
    flushed: float | None = None
    """Share of the elements that are nonzero in float32 and zero here; None where it was not
    measured."""
    source: int | None = None
    """Index of the frame whose output it is."""

    @property
    def headroom(self) -> float | None:
        """How many times larger the largest number of the dtype is."""
        limit = LARGEST.get(self.dtype)
        if limit is None or not self.absmax or self.absmax - self.absmax != 0:
            return None
        return limit / self.absmax


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One call of a module, or of `nanodoc.probe`; in the order in which the calls ended."""

    index: int
    module: str
    """Path of the module, or the label of a probe."""
    module_type: str
    """Empty for a probe."""
    tensors: tuple[FrameTensor, ...]
    location: SourceSpan | None = None
    """Where a probe was called."""

    @property
    def nonfinite(self) -> int:
        """Non-finite elements among its outputs."""
        return sum(t.nan + t.inf for t in self.tensors if t.role.startswith(("output", "probe")))


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameTable:
    """The frames of one step. `left_out` earlier ones are not in it."""

    step: int
    frames: tuple[Frame, ...]
    left_out: int = 0
    why: str = ""
    """Why this step: "asked for", "it failed", "the last step"."""
    ops: tuple[OpFacts, ...] = ()
    """The ops inside the module that made the first non-finite value."""
    module: str | None = None
    growth: tuple[GrowthPoint, ...] = ()
    """How the value that overflowed grew, op by op, where that is known."""

    def first_bad(self) -> Frame | None:
        """The first frame with a non-finite output and only finite floating inputs."""
        for frame in self.frames:
            entered = [t for t in frame.tensors if not t.role.startswith(("output", "probe"))]
            if frame.nonfinite and not any(t.nan + t.inf for t in entered):
                return frame
        return next((frame for frame in self.frames if frame.nonfinite), None)

    def path(self) -> tuple[tuple[str, float], ...]:
        """(module, largest |output|) of the frames that led to the first non-finite output, or to
        the largest one, as far as one frame's output is the next one's input; op by op where the
        step was examined."""
        if self.growth:
            return tuple((point.what, point.absmax) for point in self.growth)
        goal = self.first_bad() or max(
            (f for f in self.frames if _out(f) is not None),
            key=lambda f: _out(f) or 0.0,
            default=None,
        )
        by_index = {frame.index: frame for frame in self.frames}
        found: list[tuple[str, float]] = []
        frame, seen = goal, set[int]()
        while frame is not None and frame.index not in seen:
            seen.add(frame.index)
            value = _out(frame)
            if value is not None:
                found.append((frame.module or frame.module_type, value))
            sources = [t for t in frame.tensors if t.source is not None and t.absmax is not None]
            largest = max(sources, key=lambda t: t.absmax or 0.0, default=None)
            frame = (
                by_index.get(largest.source)
                if largest is not None and largest.source is not None
                else None
            )
        return tuple(reversed(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Magnitude:
    """One module's outputs in the step that failed."""

    module: str
    module_type: str
    absmax: float | None
    """The largest |output| of its calls; NaN where one of them holds a NaN."""
    nonfinite: int


def magnitudes(table: FrameTable) -> tuple[Magnitude, ...]:
    """Of each module, in the order in which their first calls ended."""
    calls: dict[str, list[Frame]] = {}
    for frame in table.frames:
        if frame.module_type and any(t.role.startswith("output") for t in frame.tensors):
            calls.setdefault(frame.module, []).append(frame)
    found = []
    for module, frames in calls.items():
        values = [value for frame in frames if (value := _out(frame)) is not None]
        bad = [value for value in values if value - value != 0]
        found.append(
            Magnitude(
                module=module,
                module_type=frames[0].module_type,
                absmax=bad[0] if bad else max(values, default=None),
                nonfinite=sum(frame.nonfinite for frame in frames),
            )
        )
    return tuple(found)


def _out(frame: Frame) -> float | None:
    values = [
        t.absmax for t in frame.tensors if t.role.startswith("output") and t.absmax is not None
    ]
    bad = [v for v in values if v - v != 0]
    return bad[0] if bad else max(values, default=None)
