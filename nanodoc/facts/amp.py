"""Facts about mixed precision: the loss scale, the order of GradScaler calls, and what half
precision rounds to zero. Like `evidence`: plain, frozen, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.facts.ops import OpFacts
from nanodoc.facts.source import SourceSpan

# What a train_step did with its GradScaler that it must not do.
CLIPPED_SCALED = "clipped-scaled"
STEPPED_SCALED = "stepped-scaled"
NEVER_SCALED = "never-scaled"
SCALE_DISCARDED = "scale-discarded"
BACKWARD_AFTER_UNSCALE = "backward-after-unscale"
UPDATE_BETWEEN = "update-between"
FRESH_SCALER = "fresh-scaler"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalerCall:
    """One call on a GradScaler, an optimizer or a loss, as a train_step made it."""

    kind: str
    """"scale", "backward", "unscale", "clip", "step" (through the scaler), "direct-step" or
    "update"."""
    step: int
    place: SourceSpan | None
    optimizer: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalerMisuse:
    """A wrong order of calls, seen in `steps` steps, with the first of them in detail."""

    kind: str
    place: SourceSpan | None
    """The call to blame."""
    other: SourceSpan | None = None
    """The call it stands in a wrong order to."""
    first_step: int = 0
    steps: int = 1
    scale: float | None = None
    norm: float | None = None
    """Gradient norm (or largest gradient) that clipping saw, still scaled."""
    limit: float | None = None
    """What it was clipped to."""
    clip: str = ""
    """"norm", "value" or "written by hand"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalerStep:
    """What a GradScaler did in one step."""

    step: int
    scale: float
    growth_tracker: float | None
    found_inf: tuple[tuple[int, str, bool], ...]
    """(optimizer, device, found) of every optimizer whose gradients were checked."""
    skipped: tuple[int, ...]
    """Optimizers whose step was skipped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkippedStep:
    """A skipped step that was run again when the run was over, without the loss scale."""

    step: int
    scale: float
    proven: float | None
    """The largest scale at which a step had been taken by then."""
    finite_unscaled: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Flushed:
    """Elements that are nonzero when an op is run on float32 inputs, and zero in the dtype it ran
    in."""

    kind: str
    """"gradient" (of a parameter), "activation gradient" or "activation"."""
    name: str
    """The parameter, or the module."""
    op: str
    dtype: str
    location: SourceSpan | None
    module_type: str | None
    nonzero: int
    """Elements that are nonzero in float32."""
    flushed: int
    lost_norm: float
    """2-norm of the flushed elements over that of all of them."""

    @property
    def share(self) -> float:
        return self.flushed / self.nonzero if self.nonzero else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Headroom:
    """The largest half-precision activation of a module."""

    module: str | None
    module_type: str | None
    op: str
    dtype: str
    absmax: float
    location: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AutocastRegion:
    """One `with autocast(...)` that a step entered, and what ran in it."""

    place: SourceSpan | None
    device: str
    dtype: str
    enabled: bool
    ops: int
    half_ops: int
    float_matmuls: int
    """Matrix products and convolutions that ran in float32 inside it, and not where autocast was
    switched off on purpose."""
    matmuls: int = 0
    """All of those that ran inside it, in any precision."""
    escaped: OpFacts | None = None
    """The first that ran in float32 inside it."""
    float_matmuls_outside: int = 0
    """Those of the step's forward pass outside any context."""
    nested: bool = False
    same_device: bool = True
    """It is for the device that the model is on."""
    available: bool = True
    """False where torch switched it off because the device isn't there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfParameter:
    """A trainable parameter in half precision that an optimizer holds."""

    name: str
    dtype: str
    module: str
    module_type: str
    made_at: SourceSpan | None
    """The line that made it half: its layer's, its own, or the cast's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AmpFacts:
    """Everything known of a run's mixed precision."""

    dtype: str | None = None
    asked_at: SourceSpan | None = None
    """Where the recipe asks for it."""
    has_scaler: bool = False
    scaler_enabled: bool = False
    steps: tuple[ScalerStep, ...] = ()
    calls: tuple[ScalerCall, ...] = ()
    """The calls of the last step that was watched, in order."""
    misuses: tuple[ScalerMisuse, ...] = ()
    retried: tuple[SkippedStep, ...] = ()
    flushed: tuple[Flushed, ...] = ()
    headroom: tuple[Headroom, ...] = ()
    regions: tuple[AutocastRegion, ...] = ()
    half_parameters: tuple[HalfParameter, ...] = ()

    @property
    def skipped(self) -> tuple[ScalerStep, ...]:
        return tuple(step for step in self.steps if step.skipped)

    @property
    def story(self) -> str:
        """What the scale went through, as a clause; empty where no step was skipped."""
        if not self.skipped:
            return ""
        first, last = self.steps[0].scale, self.steps[-1].scale
        return (
            f"{len(self.skipped)} of {len(self.steps)} steps were skipped, and the loss scale went "
            f"from {first:g} to {last:g}"
        )

    @property
    def calibration(self) -> int:
        """Length of the streak of skipped steps that the run began with."""
        length = 0
        for step in self.steps:
            if not step.skipped:
                break
            length += 1
        return length

    @property
    def longest_streak(self) -> tuple[int, int]:
        """(first step, length) of the longest row of skipped steps after the calibration."""
        best = (0, 0)
        began, length = 0, 0
        for step in self.steps[self.calibration :]:
            if step.skipped:
                began, length = (step.step, 1) if length == 0 else (began, length + 1)
                best = max(best, (began, length), key=lambda stretch: stretch[1])
            else:
                length = 0
        return best
