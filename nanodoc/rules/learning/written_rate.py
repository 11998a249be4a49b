"""The learning rate as it is written in the call of an optimizer."""

from __future__ import annotations

from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import OVERWRITING
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import LossScale
from nanodoc.rules.rewrite import number_in_call, written_number


def overwriting_schedule(evidence: Evidence) -> SourceSpan | None:
    """Where a schedule was made that takes no notice of the optimizer's rate."""
    schedulers = evidence.loop.schedulers if evidence.loop is not None else ()
    return next((one.built_at for one in schedulers if one.type in OVERWRITING), None)


def scaled_rate(
    evidence: Evidence, site: SourceSpan | None, factor: float
) -> tuple[str | None, str | None]:
    """(the call at `site` with its rate times `factor`, that rate); Nones where it is no number
    there, or where something else sets the rate: such a schedule, or the loop itself."""
    schedulers = evidence.loop.schedulers if evidence.loop is not None else ()
    written = written_number(site, "lr") if site is not None else None
    rates = {rate for step in (evidence.stats.rates if evidence.stats else ()) for rate in step}
    if site is None or written is None or any(one.type in OVERWRITING for one in schedulers):
        return None, None
    # a schedule multiplies what is written; without one, the rates are what is written
    if not schedulers and rates != {written}:
        return None, None
    value = f"{factor * written:.3g}"
    return number_in_call(site, "lr", value), value


def of_the_scale(scaled: LossScale) -> str:
    """What makes a loss larger than a mean, and what smaller steps showed."""
    what = {
        "sum": f"The loss is a sum over {scaled.times:.0f} elements",
        "product": f"The loss is multiplied by {scaled.times:.3g} in total",
        "micro-batches": f"The losses of {scaled.times:.0f} micro-batches are summed",
    }[scaled.how]
    return (
        f"{what}. With learning rates that many times lower, which for this optimizer is "
        f"equivalent to a mean, the same steps end at {scaled.last_loss:.3g}."
    )
