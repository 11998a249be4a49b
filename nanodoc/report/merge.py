"""The reports of all ranks as one: what failed by itself, each cause once, then what only shows
across ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nanodoc.diagnosis.finding import Finding
from nanodoc.facts.ranks import CLEAN, ROOTS, RankOutcome, first_root, order, spans_of
from nanodoc.report.report import Report


def merge(
    pairs: Sequence[tuple[RankOutcome, Report | None]],
    across: tuple[Finding, ...],
    superseded: frozenset[str],
) -> Report:
    """One report of all ranks. `across` are the findings on the run as a whole, which explain what
    single ranks say under the codes `superseded`; at least one rank has a report."""
    first = first_root([outcome for outcome, _ in pairs])
    ordered = sorted(
        pairs, key=lambda pair: (first is None or pair[0].rank != first.rank, pair[0].rank)
    )
    _, base = min(
        ((outcome, report) for outcome, report in pairs if report is not None),
        key=lambda pair: order(pair[0]),
    )
    # where no rank failed by itself, one that was given what is not finite tells more than those
    # that it left
    given = any(outcome.ended == CLEAN for outcome, _ in pairs)
    kept: dict[str, Finding] = {}
    seen_on: dict[str, list[int]] = {}
    for outcome, report in ordered:
        if (
            report is None
            or (outcome.peer and (across or given))
            or (first is not None and (outcome.peer or outcome.ended not in ROOTS))
        ):
            continue  # what a rank says that only waited, or was given NaN by others, is an effect
        for finding in report.findings:
            if finding.fingerprint not in kept:
                kept[finding.fingerprint] = replace(finding, rank=outcome.rank)
            seen_on.setdefault(finding.fingerprint, []).append(outcome.rank)
    kept = {key: finding for key, finding in kept.items() if finding.code not in superseded}
    size = len(pairs)
    own = tuple(
        replace(finding, evidence=(*finding.evidence, ("ranks", _named(seen_on[key], size))))
        for key, finding in kept.items()
    )
    leading = own[:1] if own and own[0].severity == "critical" else ()
    not_checked = dict.fromkeys(
        pair for _, report in ordered if report is not None for pair in report.not_checked
    )
    return replace(
        base,
        findings=(*leading, *across, *own[len(leading) :]),
        ranks=tuple(sorted((outcome for outcome, _ in pairs), key=lambda outcome: outcome.rank)),
        run=replace(
            base.run, rank=first.rank if first is not None else base.run.rank, world_size=size
        ),
        not_checked=tuple(not_checked),
        of_rank=None,
        interrupted=any(report.interrupted for _, report in pairs if report is not None),
        broke=any(report is None or report.broke for _, report in pairs),
        whole=all(report is not None and report.whole for _, report in pairs),
        looked=max(report.looked for _, report in pairs if report is not None),
    )


def _named(ranks: list[int], size: int) -> str:
    return "all" if len(ranks) == size else f"{spans_of(ranks)} of {size}"
