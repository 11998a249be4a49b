"""What single ranks saw → one report of all of them."""

from __future__ import annotations

from collections.abc import Sequence

from nanodoc.config import Config
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import RankOutcome, with_roots
from nanodoc.pipeline.diagnose import diagnose
from nanodoc.report.merge import merge
from nanodoc.report.report import Report
from nanodoc.rules.catalogue import superseded


def merged_report(pairs: Sequence[tuple[RankOutcome, Report | None]], config: Config) -> Report:
    """`pairs`: how each rank ended, and what it found; at least one has a report."""
    evidence = Evidence(ranks=tuple(with_roots([outcome for outcome, _ in pairs])))
    pairs = [(one, told) for one, (_, told) in zip(evidence.ranks, pairs, strict=True)]
    across = diagnose(evidence, config)
    return merge(pairs, across, superseded(across))
