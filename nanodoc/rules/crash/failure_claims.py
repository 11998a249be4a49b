"""ND709 and what rules share about exceptions of the user's code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import USUAL_CAUSE, Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.errors import Phase
from nanodoc.explain.knowledge import Explanation, explained
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure

_MOST_LINES = 6


_LONGEST_LINE = 300
_MISFIT = re.compile(r"size mismatch for ([\w.]{1,200}):")


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
                op=_public(failure.torch_function),
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


def at_earlier_call(claim: Claim, evidence: Evidence) -> Claim:
    """The claim, told of the earlier call that made what could not be taken, where a change of that
    call was seen to let the step through."""
    pattern, failure, finding = evidence.pattern, evidence.failure, claim.finding
    mended = pattern.mended if pattern is not None else None
    if mended is None or failure is None:
        return claim
    where = failure.frames[-1] if failure.frames else None
    lets = f"with {mended.instead}" if not mended.instead.startswith("with") else mended.instead
    ended = f", and its loss is {mended.loss:.4g}" if mended.loss is not None else ""
    explanation = f"{lets[0].upper()}{lets[1:]} at this line, the step runs to its end{ended}. "
    title, at_fault = failure.first_line, mended.location
    same = where is not None and (where.file, where.line) == (at_fault.file, at_fault.line)
    if same and mended.instead.startswith("without"):
        return claim  # to leave out what raises is no cure
    if not same:
        told = f"{mended.op} with {mended.was}" if mended.was else mended.op
        title = f"{told} gives what a later call cannot take: {title}"
        at = where.place if where is not None else "a later line"
        explanation += f"As it is, {at} raises {failure.type}. "
    found = replace(
        finding,
        title=title,
        explanation=explanation + finding.explanation,
        culprit=Culprit(kind="op", op=mended.op, location=mended.location),
        # another axis leaves the step doing its work; what is left out may have been meant
        confidence=confidence(0.85, 0.6 if mended.was else 0.3),
        evidence=tuple(row for row in finding.evidence if row[0] != USUAL_CAUSE),
        fixes=(Fix(title=f"{mended.op}: {mended.instead}", verified=True), *finding.fixes),
    )
    return replace(claim, finding=found)


def _public(function: str | None) -> str | None:
    """A function's name, unless it is one of torch's own, which a reader has not called."""
    return None if function is not None and function.startswith("_") else function


def place_in(phase: Phase, step: int | None) -> str:
    """ "in the backward pass of step 3". Of a step of the user's own only its backward pass and
    its optimizer are told apart from the rest."""
    return {
        "setup": "while the recipe was built",
        "script": "outside the training steps",
        "data": "while a batch was loaded",
        "backward": f"in the backward pass of step {step}",
        "optimizer": f"in the optimizer's part of step {step}",
    }.get(phase, f"in step {step}")


def known(failure: Failure) -> Explanation | None:
    """What the knowledge base has for the message. What the user's own code raises it words
    itself; torch's and Python's messages are known."""
    if not failure.raised_by_torch:
        return None
    return explained(f"{failure.type}: {failure.message}")


def usual_cause(told: Explanation | None, failure: Failure) -> list[tuple[str, str]]:
    """The likeliest cause of an entry for this message, as evidence."""
    if told is None or not told.causes:
        return []
    # one layer that differs is a head; several are another model
    layers = {name.rpartition(".")[0] for name in _MISFIT.findall(failure.message)}
    several = told.id == "checkpoint-size-mismatch" and len(layers) > 1
    return [(USUAL_CAUSE, told.causes[1 if several else 0])]


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
