"""What a fix changes, in a form that can be tried on a step. How each is tried stands in
`nanodoc.experiments.patches`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nanodoc.facts.source import SourceSpan


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """A change to a step, or to all steps of the run."""

    whole_run: bool = False
    """To be tried on all the run's steps, from step 0: a silent mistake shows in where the loss
    ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unchanged(Remedy):
    """The step as it was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AutocastOff(Remedy):
    """Autocast switched off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bfloat16(Remedy):
    """Autocast to bfloat16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Float32Module(Remedy):
    """A module computes in float32."""

    module: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LossScale(Remedy):
    """The loss scale begins at `value`, and is halved until the step is healthy."""

    value: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UnscaleFirst(Remedy):
    """Gradients are unscaled before they are clipped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Initialise(Remedy):
    """Parameters are filled as torch's own layers would."""

    parameters: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WithoutSamples(Remedy):
    """The guilty samples are left out of the batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WithoutBatch(Remedy):
    """The batch is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClearGradients(Remedy):
    """Gradients are cleared after every optimizer step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetOption(Remedy):
    """An option of the optimizer."""

    keyword: str
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LowerRate(Remedy):
    """The learning rate times `factor`."""

    factor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Clip(Remedy):
    """Gradients clipped to a norm."""

    norm: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AtCall(Remedy):
    """A change of one call of the user's code; nothing can be tried where the place is unknown."""

    location: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Float32Call(AtCall):
    """The call computes in float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaceConstant(AtCall):
    """A constant becomes another."""

    value: float
    replacement: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaceArgument(AtCall):
    """Argument `position` of `op` becomes what `template` makes of it."""

    op: str
    template: str
    position: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeInput(AtCall):
    """Argument `position` of the call of `op`, which raised, becomes what a method of it gives."""

    op: str
    position: int
    method: Literal["contiguous", "flatten", "movedim", "permute", "unsqueeze", "float", "long"]
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SetKeyword(AtCall):
    """The call of `op` gets a flag."""

    op: str
    keyword: str
    value: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Bypass(AtCall):
    """The call of `op` gives back what it is given."""

    op: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSoftmax(AtCall):
    """log(softmax(x)) becomes log_softmax(x)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSumExp(AtCall):
    """log(sum(exp(x))) becomes logsumexp(x)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptMean(AtCall):
    """A mean over the targets that are not ignored, 0 where all are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmptyMean(AtCall):
    """The mean of nothing is 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmaskRow(AtCall):
    """A row of a softmax that is masked as a whole is not masked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoneStatistics(AtCall):
    """The biased standard deviation or variance of a single value."""
