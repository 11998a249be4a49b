"""## What it checks
The learning rates of all steps: 0 throughout; below a ten-thousandth of their peak for half the run
or more (critical if that begins within the first quarter, else a warning), or at most a hundredth
of it for nine tenths of the run (for StepLR and similar schedules stepped with every batch: at most
a tenth, after the first twentieth); a LambdaLR that leaves less than a fiftieth of the rate
throughout; a CosineAnnealingLR stepped beyond its T_max, after which it climbs again; a OneCycleLR
sized in batches but stepped by epochs. If a supervised loss did not fall in 30 steps or more, the
run is repeated from step 0 with a tenth and with a hundredth of the learning rate: if it then ends
at half the loss or less, the rate was too high. If a schedule raises the rate to at least five
times what the optimizer was given, the run is also repeated without that raise.

## Why it matters
A schedule meant for epochs but stepped with every batch ends after a few batches. The loss looks
like a plateau.

## Example
    scheduler = ExponentialLR(optimizer, gamma=0.5)
    for batch in loader:
        ...
        scheduler.step()

## Fix
Step it once per epoch, or choose its length in batches.

## See also
ND614 scheduler-order, ND605 update-ratio
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import SchedulerFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.learning.rate_too_high import rate_claim, too_high

_SHORTEST = 10  # steps that a schedule can be judged by

_HALF = 0.5  # of the run; every schedule that ends at zero is near zero at its end

_EARLY = 0.25

_LOW = 0.01  # times the peak; most schedules end there, and none stays there for all of a run

_FIRST = 0.1  # of the run

_TENTH = 0.1  # times the peak; where a schedule for epochs has come there, it has come to its end

_AT_ONCE = 0.05  # of the run

_ROUNDED = 1e-6

_BY_EPOCH = ("StepLR", "MultiStepLR", "ExponentialLR", "MultiplicativeLR", "PolynomialLR")

_FEW = 4  # batches a pass: less is no difference

_ALL_OF_IT = 0.8  # of the run: a length that counts batches

_SETTLED = 30  # steps

_A_RATE = 0.05  # a higher one may be there to be multiplied

_LITTLE = 0.02  # of the rate that was given

_RISES = 1.5  # times the lowest rate


@rule(
    "ND609",
    "learning-rate-range",
    "critical",
    "a learning rate that is zero, decays to zero at once, or is too high to learn with",
    needs=(
        "stats",
        "loop",
    ),
    thresholds={"gone": Threshold(0.0001, "times the peak: a rate below it changes nothing")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    stats, loop = evidence.stats, evidence.loop
    if (
        stats is None
        or loop is None
        or len(stats.rates) < _SHORTEST
        or not evidence.optimizer_sites
    ):
        return
    if not all(stats.rates):
        return
    steps = [max(rates) for rates in stats.rates]
    peak = max(steps)
    scheduler = next(iter(loop.schedulers), None)
    if peak == 0 and any(p.moved for p in stats.parameters):
        return
    if peak == 0:
        yield _zero(rule, evidence, scheduler)
        return
    by_epoch = (
        scheduler is not None
        and scheduler.type in _BY_EPOCH
        and max(scheduler.steps, scheduler.last_epoch or 0) >= _ALL_OF_IT * len(steps)
    )
    low = _low(steps, check.limit(evidence, "gone"), by_epoch=by_epoch)
    if low is not None and (low[0] <= _EARLY * len(steps) or not evidence.default_length):
        yield _vanished(rule, evidence, scheduler, steps, *low)
        return
    per_pass = evidence.data.per_pass if evidence.data is not None else None
    wrong = _no_factor(rule, loop.schedulers, steps) or too_high(rule, evidence)
    if wrong is not None:
        yield wrong
        return
    for scheduler in loop.schedulers:
        if _meant_for_batches(scheduler, evidence, len(steps)):
            yield _by_epoch(rule, scheduler, steps)
            return
        if (
            scheduler.type == "CosineAnnealingLR"
            and scheduler.period
            and scheduler.last_epoch
            and scheduler.last_epoch > 1.1 * scheduler.period + 1
        ):
            lowest = min(steps)
            if (
                max(steps[steps.index(lowest) :]) > _RISES * lowest + 1e-12
                and not evidence.default_length
            ):
                yield _beyond(
                    rule,
                    scheduler,
                    steps,
                    by_batch=per_pass is not None and scheduler.period < per_pass,
                )
                return


def _low(steps: list[float], gone: float, *, by_epoch: bool) -> tuple[int, float] | None:
    """(the step from which on every rate is lower, lower than what); None where the rates stay
    high for long enough. `by_epoch`: by a schedule that is usually stepped once per pass, and was
    stepped with every batch."""
    looks = [(gone, _HALF), (max(gone, _LOW), _FIRST), *([(_TENTH, _AT_ONCE)] if by_epoch else [])]
    for times, latest in looks:
        least = times * max(steps) * (1 + _ROUNDED)
        behind = next((i for i in reversed(range(len(steps))) if steps[i] >= least), -1) + 1
        if behind <= latest * len(steps):
            return behind, least
    return None


def _no_factor(
    rule: Rule, schedulers: tuple[SchedulerFacts, ...], steps: list[float]
) -> Claim | None:
    """A LambdaLR that gives rates where factors are wanted: from some step on, and always, less
    than a fiftieth of the rate that the optimizer was given is left. Whoever means the function to
    give rates gives the optimizer a rate of 1."""
    if len(schedulers) != 1 or schedulers[0].type != "LambdaLR" or len(steps) < _SETTLED:
        return None
    base, peak = schedulers[0].base, max(steps)
    still_rising = steps.index(peak) >= _ALL_OF_IT * len(steps)
    if base is None or base > _A_RATE or still_rising or not 0 < peak < _LITTLE * base:
        return None
    return rate_claim(
        rule,
        severity="warning",
        weight=0.75,
        title=f"LambdaLR leaves {peak / base:.1g} of the learning rate of {base:.3g}",
        explanation="The value of its function is multiplied by the optimizer's rate. In "
        f"{len(steps)} steps the rate was at most {peak:.3g}: the function seems to return "
        "rates, not factors.",
        location=schedulers[0].built_at or schedulers[0].stepped_at,
        step=steps.index(peak),
        notes=[("learning rate", base), ("highest rate of a step", peak)],
        fix="let the function return factors of at most 1, or give the optimizer a rate of 1",
    )


def _meant_for_batches(scheduler: SchedulerFacts, evidence: Evidence, steps: int) -> bool:
    """A one-cycle schedule whose length counts batches, and which stepped with every pass over the
    data."""
    if scheduler.type != "OneCycleLR" or not scheduler.period or scheduler.last_epoch is None:
        return False
    per_pass = evidence.data.per_pass if evidence.data is not None else None
    if not per_pass and scheduler.last_epoch:
        # a trainer's loader is not known; the trainer steps the schedule at the end of each pass
        per_pass = steps // scheduler.last_epoch
    if not per_pass or per_pass < _FEW:
        return False
    return (
        scheduler.period % per_pass == 0
        and scheduler.period >= _ALL_OF_IT * steps >= _ALL_OF_IT * per_pass
        and scheduler.last_epoch <= steps / per_pass + 1
    )


def _by_epoch(rule: Rule, scheduler: SchedulerFacts, steps: list[float]) -> Claim:
    return rate_claim(
        rule,
        severity="critical",
        weight=0.75,
        title=f"OneCycleLR with {scheduler.period} steps has stepped {scheduler.last_epoch} times "
        f"in {len(steps)} batches",
        explanation="Its length counts batches, but it steps once per pass over the data: the "
        f"learning rate stays at the start of its cycle ({min(steps):.3g} … {max(steps):.3g}).",
        location=_stepped_at(scheduler) or scheduler.built_at,
        step=0,
        notes=[
            ("length of the schedule", scheduler.period),
            ("its steps so far", scheduler.last_epoch),
            ("batches so far", len(steps)),
        ],
        fix='step it after every batch ("scheduler_interval": "step"), or build it with '
        "total_steps=epochs",
    )


def _zero(rule: Rule, evidence: Evidence, scheduler: SchedulerFacts | None) -> Claim:
    site = scheduler.built_at if scheduler is not None else None
    return rate_claim(
        rule,
        severity="critical",
        weight=0.9,
        title="the learning rate is 0 in every step",
        explanation=f"No parameter has changed in {len(evidence.losses)} steps.",
        location=site or next((at for at in evidence.rate_sites if at is not None), None),
        step=0,
        notes=[("schedule", scheduler.type if scheduler else "")],
        fix="give the optimizer a learning rate, or check what the schedule does to it",
    )


def _vanished(
    rule: Rule,
    evidence: Evidence,
    scheduler: SchedulerFacts | None,
    steps: list[float],
    gone: int,
    least: float,
) -> Claim:
    by_batch = scheduler is not None and scheduler.type in _BY_EPOCH
    stepped = _stepped_at(scheduler)
    built = scheduler.built_at if scheduler is not None else None
    where = stepped if by_batch and stepped is not None else built or stepped
    if where is None:  # a library may step the only schedule that was made
        made = [at for at in evidence.scheduler_sites if at is not None]
        rates = (at for at in evidence.rate_sites if at is not None)
        where = made[0] if len(made) == 1 else next(rates, None)
    name = scheduler.type if scheduler is not None else "the training code"
    early = gone <= _EARLY * len(steps)
    other = built if where is not built else stepped
    notes: list[tuple[str, object]] = [
        ("learning rate", f"{steps[0]:.3g} → {max(steps):.3g} → {steps[-1]:.3g}"),
        ("steps at its end", f"{len(steps) - gone} of {len(steps)}"),
        (
            "made at" if other is built else "stepped at",
            f"{other.place}: {other.code.splitlines()[0]}" if other is not None else "",
        ),
    ]
    every = (
        " It is a schedule for epochs, but steps with every batch." if by_batch and early else ""
    )
    lowest = least < _LOW * max(steps)
    moves = "no weight changes" if lowest else "the weights hardly change"
    return rate_claim(
        rule,
        severity="critical" if early and lowest else "warning",
        weight=0.85 if early else 0.6,
        title=f"the learning rate is gone after {gone} of {len(steps)} steps",
        explanation=f"{name} brought it from {max(steps):.3g} to below {least:.1g} by step "
        f"{gone}; since then {moves}.{every}",
        location=evidence.stats.gone_at or where if evidence.stats is not None else where,
        step=gone,
        notes=notes,
        fix="step the schedule once per epoch, or make it as long as the run"
        if by_batch
        else "make the schedule as long as the run",
    )


def _beyond(rule: Rule, scheduler: SchedulerFacts, steps: list[float], *, by_batch: bool) -> Claim:
    """`by_batch`: T_max is less than a pass over the data, and so counts epochs. Otherwise the
    waves may be meant."""
    period, last = scheduler.period or 0, scheduler.last_epoch or 0
    return rate_claim(
        rule,
        severity="warning" if by_batch else "info",
        weight=0.8 if by_batch else 0.4,
        title=f"CosineAnnealingLR with T_max={period} was stepped {last} times: the rate goes down "
        "and up again",
        explanation=f"The cosine reaches its end at {period} steps and then climbs back: T_max is "
        "the "
        "length of the whole decay, counted in calls of scheduler.step().",
        location=scheduler.built_at or scheduler.stepped_at,
        step=period,
        notes=[
            ("learning rate", f"between {min(steps):.3g} and {max(steps):.3g}"),
            ("T_max", period),
            ("steps of the schedule", last),
        ],
        fix="T_max = epochs × batches per epoch if it steps with every batch; "
        "CosineAnnealingWarmRestarts if restarts are intended",
    )


def _stepped_at(scheduler: SchedulerFacts | None) -> SourceSpan | None:
    """The user's own call of step(); None where a trainer calls it, and the user's line is that
    which starts the training."""
    place = scheduler.stepped_at if scheduler is not None else None
    return place if place is not None and ".step(" in place.code else None
