"""A finding inside of an installed package, where no line of the user's was running: a trainer ran
a library's model. The line of the user's that made the module stands first, then the library's."""

from __future__ import annotations

from dataclasses import replace

from nanodoc.diagnosis.finding import Finding, Fix
from nanodoc.facts.source import SourceSpan
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.trace.files import USER, frame_kind


def at_users_lines(findings: tuple[Finding, ...], build: BuildFacts) -> tuple[Finding, ...]:
    """The findings, each at a line of the user's where one is known."""
    return tuple(_at_users_line(finding, build) for finding in findings)


def _at_users_line(finding: Finding, build: BuildFacts) -> Finding:
    culprit = finding.culprit
    place = culprit.location
    if place is None or culprit.module is None or frame_kind(place.file) == USER:
        return finding
    made = build.module_made_at(culprit.module)
    if made is None:
        return finding
    return replace(
        finding,
        culprit=replace(culprit, location=made),
        evidence=(
            *finding.evidence,
            ("in the library", f"{place.place} in {place.function}"),
        ),
        fixes=tuple(_still_of(place, fix) for fix in finding.fixes),
    )


def _still_of(place: SourceSpan, fix: Fix) -> Fix:
    """A diff stays one of the library's line."""
    if fix.patch is None or fix.replaces is not None:
        return fix
    return replace(fix, replaces=place)
