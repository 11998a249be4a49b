"""ND709 and what rules share about exceptions of the user's code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure

_MOST_LINES = 6


_LONGEST_LINE = 300


def failure_claim(
    rule: Rule,
    evidence: Evidence,
    *,
    title: str,
    explanation: str,
    fixes: Iterable[Fix] = (),
    specificity: Specificity = Specificity.FAMILY,
    extra: Iterable[tuple[str, Any]] = (),
) -> Claim:
    """The claim of `rule` on the exception that ended the run, at the innermost frame of the user's
    code."""
    failure = evidence.failure
    assert failure is not None
    # nanodoc itself calls the recipe's criterion: its own line is what the user can change
    outside = (
        failure.phase == "forward"
        and failure.raised_by_torch
        and (
            evidence.crash is None
            or evidence.crash.call is None
            or evidence.crash.call.module is None
        )
    )
    where = failure.frames[-1] if failure.frames else evidence.criterion_site if outside else None
    if where is None and failure.phase == "data":
        where = evidence.data_site
    if where is None and failure.origin.startswith("optim/lr_scheduler"):
        where = next((site for site in evidence.scheduler_sites if site is not None), None)
    trace = [
        (f"frame {i}", f"{span.place} in {span.function}: {span.code.splitlines()[0]}")
        for i, span in enumerate(failure.frames)
    ]
    return Claim(
        root=("failure",),
        specificity=specificity,
        finding=rule.finding(
            # an exception is a fact; what is uncertain is whether its line is its cause
            confidence=confidence(
                0.5, 0.4 if where is not None else 0.0, 0.4 if not failure.raised_by_torch else 0.0
            ),
            title=title,
            explanation=explanation,
            culprit=Culprit(
                kind="op",
                op=failure.torch_function,
                location=where,
                dataset_indices=_only(evidence),
            ),
            phase=failure.phase,
            step=evidence.failure_step if failure.phase not in ("setup", "script") else None,
            evidence=(
                *extra,
                *_further_lines(failure),
                *trace,
                *(("note", note) for note in failure.notes),
            ),
            fixes=tuple(fixes),
        ),
    )


def _further_lines(failure: Failure) -> Iterable[tuple[str, str]]:
    """What the message says below its first line: the keys of a checkpoint that do not fit, how to
    go on."""
    lines = [
        " ".join(line.split()) for line in failure.message.strip().split("\n")[1:] if line.strip()
    ]
    for line in lines[:_MOST_LINES]:
        yield "message", line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} …"


def _only(evidence: Evidence) -> tuple[int, ...]:
    """Where the batch is a single sample, its place in the data set."""
    indices = evidence.crash.indices if evidence.crash is not None else ()
    return indices if len(indices) == 1 else ()
