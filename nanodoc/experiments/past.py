"""When did it go wrong? Whether the steps since a checkpoint stay finite with a smaller step."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from nanodoc.experiments.trial import Say, StepTrials
from nanodoc.facts.course import rise
from nanodoc.facts.plateau import late_loss
from nanodoc.facts.trials import RerunFacts, Stretch, TurnedBetas
from nanodoc.replay.past_step import PastStep
from nanodoc.replay.rerun import Rerun
from nanodoc.replay.step_state import StepState
from nanodoc.replay.weight_history import WeightHistory

_LAST = 3  # steps before the one that broke
_FIRST = 5
_CLIP = 1.0  # the usual limit of the gradient norm
# (times the learning rates, gradient norm clipped to); the smaller rates only where no larger one
# did
_CHANGES: tuple[tuple[float, float | None], ...] = (
    (0.1, None),
    (1.0, _CLIP),
    (0.01, None),
    (1e-3, None),
    (1e-4, None),
    (1e-5, None),
)
_SLOWER = (0.1, 0.01)
_GREW = 2.0  # RULES, ND606: a loss of twice its start
_FAR = 10.0  # times the first losses; single batches differ by less
_OUTLIER = 100.0  # times the median loss of the batches
_SLACK = 0.02  # of the loss, of one and the same batch
_LONGEST = 300  # steps run again


class Past:
    """Runs the steps up to one that failed, or up to the last one, again."""

    def __init__(self, trials: StepTrials, checkpoints: WeightHistory, say: Say) -> None:
        self._trials = trials
        self._checkpoints = checkpoints
        self._say = say

    def slower(
        self, until: int, enough: Callable[[float, float | None], bool], highest: float | None
    ) -> RerunFacts | None:
        """The steps from step 0 with learning rates of at most `highest`, then with smaller and
        smaller ones, in a run that stayed finite, until one ends at a late loss that is `enough`
        for the highest rate that it was allowed; None where they can't be run again."""
        start = self._checkpoints.first
        steps = (
            self._checkpoints.steps_between(0, until)
            if start is not None and start.step == 0
            else None
        )
        if start is None or not steps or len(steps) > _LONGEST:
            return None
        stretches: list[Stretch] = []
        tried = [(1.0, highest)] if highest is not None else []
        for rate, limit in [*tried, *((rate, None) for rate in _SLOWER)]:
            name = f"learning rate × {rate:g}" if limit is None else f"learning rate ≤ {limit:.3g}"
            self._say(f"trying {name} from step 0 …")
            course = self._trials.course(start, steps, 0.4, name, rate=rate, highest=limit)
            if course is None or not course.losses:
                break
            stretches.append(
                Stretch(
                    name=name,
                    rate=rate,
                    highest=limit,
                    clip=None,
                    passes=course.complete,
                    finite=course.complete,
                    last_loss=late_loss(course.losses),
                    seconds=round(course.seconds, 4),
                )
            )
            if course.complete and enough(late_loss(course.losses), limit):
                break
        return (
            RerunFacts(start=0, until=until, repeated=True, stretches=tuple(stretches))
            if stretches
            else None
        )

    def course(self, until: int, *, broke: bool) -> RerunFacts | None:
        """Stretches that end with step `until`: as it was, with smaller learning rates, with
        clipping. `broke`: the run's own ended in a loss or gradient that is not finite; otherwise
        its loss had only grown. None where the steps since a checkpoint can't be run again."""
        found: RerunFacts | None = None
        cured: RerunFacts | None = None
        for start in sorted(
            self._checkpoints.before(until), key=lambda state: (state.step == 0, -state.step)
        ):
            steps = self._checkpoints.steps_between(start.step, until)
            if steps is None or len(steps) > _LONGEST:
                continue
            found = self._from(start, steps, broke)
            if found is None:
                continue
            if _tenfold(found):
                return found
            # what only far smaller rates cure may have begun before the stretch
            cured = cured or (found if found.passing() else None)
            # a loss that is high already when the stretch begins does not grow any more
            if broke and not found.repeated:
                return cured or found
        return cured or found

    def with_patch(
        self, patch: Callable[[], contextlib.AbstractContextManager[Any]]
    ) -> Rerun | None:
        """All steps from step 0 (the first few hundred of them) with a patch in place; None where
        they can't be run again."""
        start, past = self._checkpoints.first, self._checkpoints.past
        if start is None or not past:
            return None
        steps = self._checkpoints.steps_between(
            start.step, min(past[-1].step, start.step + _LONGEST - 1)
        )
        if start.step or not steps:
            return None
        with patch():
            return self._trials.course(start, steps, 0.5, "a fix on the whole run")

    def with_option(self, until: int, name: str, value: float) -> bool | None:
        """Whether the steps since the latest checkpoint before `until` stay finite with an
        optimizer option set; None where they can't be run again."""
        for start in self._checkpoints.before(until):
            steps = self._checkpoints.steps_between(start.step, until)
            if steps is not None and len(steps) <= _LONGEST:
                what = f"{name} = {value:g}"
                course = self._trials.course(start, steps, 0.25, what, options={name: value})
                return course.complete if course is not None else None
        return None

    def with_turned_betas(self, until: int, betas: tuple[float, float]) -> TurnedBetas | None:
        """Whether the steps from step 0 do not diverge with the two betas in each other's place;
        None where they do, or can't be run again."""
        first, second = betas
        start = self.first()
        steps = self._checkpoints.steps_between(0, until) if start is not None else None
        if start is None or not steps or len(steps) > _LONGEST:
            return None
        what = f"betas ({second:g}, {first:g})"
        self._say(f"trying {what} up to step {until} …")
        turned = {"betas": (second, first)}
        course = self._trials.course(start, steps, 0.25, what, options=turned)
        if course is None or not course.complete or rose(course) or spiked(course, []):
            return None
        return TurnedBetas(first=first, second=second, last_loss=late_loss(course.losses))

    def first(self) -> StepState | None:
        """The checkpoint of step 0."""
        start = self._checkpoints.first
        return start if start is not None and start.step == 0 else None

    def again_from(
        self,
        start: StepState,
        until: int,
        *,
        rate: float = 1.0,
        what: str = "other initial weights",
    ) -> Rerun | None:
        """The steps up to `until` with the weights of `start`, and with every learning rate times
        `rate`; None where they can't be run again. `what` is tried, for those who watch."""
        steps = self._checkpoints.steps_between(start.step, until)
        if not steps or len(steps) > _LONGEST:
            return None
        what = what if rate == 1 else f"learning rate × {rate:.3g}"
        self._say(f"trying {what} up to step {until} …")
        return self._trials.course(start, steps, 0.25, what, rate=rate)

    def _from(self, start: StepState, steps: list[PastStep], broke: bool) -> RerunFacts | None:
        self._say(f"re-running steps {start.step} to {steps[-1].step} …")
        control = self._trials.course(start, steps, 0.25, "earlier steps")
        if control is None:
            return None
        # not bitwise the same, a course that explodes may come to the end of its numbers later
        repeated = (broke and not control.complete) or _grew(control)
        still = self._trials.course(start, steps, 0.25, "earlier steps without learning", rate=0.0)
        unmoved = still.losses if still is not None and _says_enough(still) else []
        # batches that cost as much with weights that do not move are no fault of the steps
        if still is not None and still.complete:
            repeated = repeated and _is_worse(control, still.losses, broke=broke)
        stretches: list[Stretch] = []
        for rate, clip in _CHANGES if repeated else ():
            if rate < 0.1 and any(stretch.passes and stretch.clip is None for stretch in stretches):
                continue
            name = (
                f"learning rate × {rate:g}"
                if clip is None
                else f"gradient norm clipped to {clip:g}"
            )
            self._say(f"trying {name} from step {start.step} …")
            course = self._trials.course(start, steps, 0.25, name, rate=rate, clip=clip)
            if course is None:
                break
            passes = (
                course.complete
                and not spiked(course, unmoved)
                and (_learned(course) if rate < 0.1 else not rose(course))
            )
            last = course.losses[-1] if course.losses else None
            stretches.append(
                Stretch(
                    name=name,
                    rate=rate,
                    clip=clip,
                    passes=passes,
                    finite=course.complete and not spiked(course, unmoved),
                    last_loss=last,
                    seconds=round(course.seconds, 4),
                )
            )
        return RerunFacts(
            start=start.step,
            until=steps[-1].step,
            repeated=repeated,
            stretches=tuple(stretches),
            alike=bool(unmoved),
        )


def _tenfold(found: RerunFacts) -> bool:
    """Clipping or a tenth of the learning rate is enough."""
    return any(stretch.rate >= 0.1 for stretch in found.passing())


def _grew(course: Rerun) -> bool:
    """The last losses are more than twice the first ones."""
    first, last = _ends(course)
    if not (math.isfinite(first) and math.isfinite(last)) or abs(last) > _GREW * abs(first):
        return True
    return rise(course.losses) is not None


def _says_enough(still: Rerun) -> bool:
    """What the batches cost with weights that do not move: they differ, but none is so far off that
    it explains what happened by itself."""
    sizes = [abs(loss) for loss in still.losses]
    return still.complete and max(sizes) <= _OUTLIER * statistics.median(sizes)


def _is_worse(control: Rerun, unmoved: Sequence[float], *, broke: bool) -> bool:
    """The steps made the loss of the same batches far larger."""
    if broke:  # where every loss was finite, it was a gradient that broke the step
        return any(
            not math.isfinite(loss) or abs(loss) > _FAR * abs(same)
            for loss, same in zip(control.losses, unmoved, strict=False)
        ) or all(map(math.isfinite, control.losses))
    kept = statistics.median([abs(loss) for loss in unmoved[-min(_LAST, len(unmoved)) :]])
    return not math.isfinite(_ends(control)[1]) or abs(_ends(control)[1]) > _GREW * kept


def spiked(course: Rerun, unmoved: Sequence[float]) -> bool:
    """Some loss on the way, or the last ones, were far above the first: inputs that grow, or one
    batch that is far off, do that whatever the learning rate. `unmoved`: what each batch costs with
    weights that do not move, where that is known."""
    first, last = _ends(course)
    first = min(abs(first), abs(course.losses[0]))
    if not unmoved:
        return _grew(course) or max(map(abs, course.losses)) > _FAR * abs(first)
    kept = [abs(loss) for loss in unmoved[-min(_LAST, len(unmoved)) :]]
    if not math.isfinite(last) or abs(last) > _GREW * max(abs(first), statistics.median(kept)):
        return True
    return any(
        abs(loss) > _FAR * max(abs(first), abs(same))
        for loss, same in zip(course.losses, unmoved, strict=False)
    )


def rose(course: Rerun) -> bool:
    """The loss of the first batch is higher afterwards: a smaller step that only takes longer to
    fail is no cure."""
    first = course.losses[0]
    return not math.isfinite(course.again) or course.again > first + _SLACK * abs(first)


def _learned(course: Rerun) -> bool:
    """The loss of the first batch fell: a hundredth of the learning rate keeps most runs from
    failing, by keeping them where they are."""
    first = course.losses[0]
    return math.isfinite(course.again) and course.again < first - _SLACK * abs(first)


def _ends(course: Rerun) -> tuple[float, float]:
    """The median of the first and of the last losses."""
    losses = course.losses
    if len(losses) < 2:
        return (losses[0], losses[0]) if losses else (math.nan, math.nan)
    first = losses[: min(_FIRST, max(len(losses) // 4, 1))]
    last = losses[-min(_LAST, len(losses) - 1) :]
    return statistics.median(first), statistics.median(last)
