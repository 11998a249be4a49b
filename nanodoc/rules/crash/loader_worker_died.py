"""## What it checks
Whether a DataLoader worker ended without an exception. The batches are then loaded once more in a
fresh process without workers, with every line recorded: if that ends in the same way, the line and
the sample are named.

## Why it matters
The error can appear at any moment of a step, with the traceback of whatever was running then.

## Example
    RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.

## Fix
Bus error: more shared memory (`--shm-size`). Killed: fewer workers, or less memory per worker.
Segmentation fault: look at the named sample.

## Options
`--budget` limits the second run.

## See also
ND104 ragged-batch, ND711 process-died
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.death import DeathFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure_kinds import worker_died
from nanodoc.rules.base import Account
from nanodoc.rules.crash.death_claims import meaning
from nanodoc.rules.crash.failure_claims import failure_claim


@rule(
    "ND708",
    "loader-worker-died",
    "critical",
    "a worker process of the data loader was killed or ended itself",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    match = worker_died(failure) if failure is not None else None
    if failure is None or match is None:
        return
    seen = evidence.death if evidence.death is not None and evidence.death.in_worker else None
    death = seen if seen is not None and seen.again else None
    well = (
        " The same batches load without error when there are no workers."
        if seen is not None and not seen.again
        else ""
    )
    signal = match["signal"]
    account = _account(signal, death, well)
    extra = _seen(signal, death)
    claim = failure_claim(
        rule,
        evidence,
        title=account.title,
        explanation=account.explanation,
        fixes=account.fixes,
        specificity=Specificity.SPECIAL,
        extra=extra,
    )
    experiments: tuple[dict[str, str | None], ...] = ()
    if seen is not None:
        experiments = (
            {
                "name": "loaded without workers",
                "outcome": "ends in the same way" if seen.again else "goes well",
                "loss": None,
            },
        )
    sure = confidence(0.6, 0.6 if death is not None else 0.0, 0.3 if signal == "Bus error" else 0.0)
    # the signal that reports it comes at any moment of the step
    yield replace(
        claim,
        finding=replace(
            claim.finding,
            culprit=_culprit(evidence, death),
            confidence=sure,
            experiments=experiments,
            phase="data",
            evidence=tuple(extra),
        ),
    )


def _account(signal: str | None, death: DeathFacts | None, well: str) -> Account:
    """`death` is the end of the second run where it ended in the same way; `well` says that it went
    well, or is empty."""
    explanation, fix = _reason(signal, death, well)
    return Account(
        title=f"a worker of the data loader {'was killed (' + signal + ')' if signal else 'ended'}"
        + (f" at sample {death.item}" if death is not None and death.item is not None else ""),
        explanation=explanation,
        fixes=(fix,) if fix is not None else (),
    )


def _reason(signal: str | None, death: DeathFacts | None, well: str) -> tuple[str, Fix | None]:
    """Why the worker ended, and what helps."""
    if signal == "Bus error":
        return (
            "A worker ran out of shared memory (/dev/shm), which passes batches to the "
            "training process."
        ), Fix(
            title="more shared memory (docker run --shm-size=8g, or --ipc=host), or fewer workers",
            confidence="likely",
        )
    if death is not None:
        return (
            f"Loading the batches without workers ends in the same way: the process {death.how}. "
            f"{meaning(death)}"
        ).strip(), None
    if signal == "Killed":
        return (
            "A worker was killed from outside, usually by the kernel because memory ran out: every "
            "worker holds the data set and its prefetched batches." + well
        ), Fix(
            title="use fewer workers, a smaller prefetch_factor, and a data set that does not hold "
            "everything in Python lists",
            confidence="likely",
        )
    if well:
        return "A worker process ended without an exception." + well, Fix(
            title="it happens only in workers: open files, connections and native libraries in "
            "the worker (worker_init_fn, or on first use), not before the fork, or start "
            "workers with multiprocessing_context='spawn'",
            confidence="maybe",
        )
    return "A worker process ended without an exception.", Fix(
        title="num_workers=0 shows the error where it happens; the likeliest cause is threads "
        "or locks from before the fork",
        confidence="maybe",
    )


def _seen(signal: str | None, death: DeathFacts | None) -> list[tuple[str, str]]:
    """The signal, and the sample and the last call of the second run."""
    found = [("signal", signal)] if signal else []
    if death is not None:
        if death.item is not None:
            found.append(("sample of the data set", str(death.item)))
        if death.call is not None:
            found.append(("last call", death.call))
    return found


def _culprit(evidence: Evidence, death: DeathFacts | None) -> Culprit:
    """The line and the sample of the second run; else the line that made the loader."""
    if death is None:
        return Culprit(kind="data", location=evidence.data_site)
    return Culprit(
        kind="data",
        op=death.call,
        location=death.frames[-1] if death.frames else evidence.data_site,
        dataset_indices=(death.item,) if death.item is not None else (),
    )
