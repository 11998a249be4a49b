"""What a second run of a script has to know of the sick step that ended the first one."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from nanodoc.facts.untraced import NOT_REPRODUCED, Untraced, rounding_on, sending_one
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.report.report import Report


def untraced(
    report: Report, outcome: Outcome, engine: ScriptEngine, earlier: Iterable[Report]
) -> Untraced | None:
    """The step that ended a script's training, where `report` of that knows no cause and a second
    run may show one. `earlier`: the reports of the trainings before it."""
    trip, before = outcome.evidence.trip, [one.vitals.steps for one in earlier]
    unknown = outcome.evidence.reproduced in ("not_run", "no")
    named = any(finding.name == NOT_REPRODUCED for finding in report.findings)
    if trip is None or not (unknown and named):
        return None
    return Untraced(
        training=len(before),
        step=trip.step,
        steps=sum(before) + trip.step + 1,
        losses=report.vitals.losses[: trip.step],
        rounding=rounding_on(engine.runner.device.type),
        compiled=engine.build.is_compiled(engine.recipe.model),
        sends_by=sending_one(sys.modules),
    )
