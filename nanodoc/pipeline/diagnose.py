"""The one way from evidence to findings: every command, and what is made of a dead process or of
several ranks, judges with the thresholds and the choice of rules that the configuration names.
Nothing here imports torch."""

from __future__ import annotations

from dataclasses import replace

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.diagnosis.ranking import rank
from nanodoc.diagnosis.source_names import with_source_names
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.catalogue import claims


def diagnose(evidence: Evidence, config: Config) -> tuple[Finding, ...]:
    """What the selected rules find in the evidence, the gravest first."""
    judged = replace(evidence, thresholds=config.thresholds)
    found = rank(claims(judged, config.select, config.ignore))
    return tuple(with_source_names(finding) for finding in found)
