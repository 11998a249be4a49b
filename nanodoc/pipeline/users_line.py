"""A finding inside of an installed package, where no line of the user's was running: a trainer ran
a library's model or loss. The line of the user's that made the module, or what the loss was
given, stands first, then the library's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.finding import Finding, Fix
from nanodoc.facts.ops import Birth
from nanodoc.facts.source import SourceSpan
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.trace.files import USER, frame_kind


def at_users_lines(
    findings: tuple[Finding, ...], build: BuildFacts, births: Iterable[Birth] = ()
) -> tuple[Finding, ...]:
    """The findings, each at a line of the user's where one is known."""
    return tuple(_at_users_line(finding, build, births) for finding in findings)


def _at_users_line(finding: Finding, build: BuildFacts, births: Iterable[Birth]) -> Finding:
    culprit = finding.culprit
    place = culprit.location
    if place is None or frame_kind(place.file) == USER:
        return finding
    given = _given_at(place, births) if culprit.module is None else None
    made = build.module_made_at(culprit.module) if culprit.module is not None else given
    if made is None:
        return finding
    if given is not None:  # what the library computes is for nobody to mend
        told = f"{finding.explanation} That is at {place.place}, on what this line gives."
        fixes = tuple(replace(fix, patch=None) for fix in finding.fixes)
        finding = replace(finding, explanation=told, fixes=fixes)
    return replace(
        finding,
        culprit=replace(culprit, location=made),
        evidence=(
            *finding.evidence,
            ("in the library", f"{place.place} in {place.function}"),
        ),
        fixes=tuple(_still_of(place, fix) for fix in finding.fixes),
    )


def _given_at(place: SourceSpan, births: Iterable[Birth]) -> SourceSpan | None:
    """The nearest line of the user's that made what an op of a library's own loss was given."""
    for birth in births:
        if (birth.forward or birth.op).site == place:
            for op in birth.upstream:
                if op.site is not None and frame_kind(op.site.file) == USER:
                    return op.site
    return None


def _still_of(place: SourceSpan, fix: Fix) -> Fix:
    """A diff stays one of the library's line."""
    if fix.patch is None or fix.replaces is not None:
        return fix
    return replace(fix, replaces=place)
