"""## What it checks
That a DataLoader's worker ended without an exception. The batches are then loaded once more in a
fresh process without workers, with every line noted down: where that ends in the same way, the line
and the sample are named.

## Why it matters
The error shows up at any moment of a step, with the traceback of whatever ran just then.

## Example
    RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.

## Fix
Bus error: more shared memory (`--shm-size`). Killed: fewer workers, or less held per worker.
Segmentation fault: the sample that is named.

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
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure_kinds import worker_died
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
        " Loading the same batches without workers went well."
        if seen is not None and not seen.again
        else ""
    )
    signal = match["signal"]
    fixes = []
    if signal == "Bus error":
        explanation = (
            "A worker ran out of shared memory (/dev/shm), through which batches travel to the "
            "training process."
        )
        fixes.append(
            Fix(
                title="more shared memory (docker run --shm-size=8g, or --ipc=host), or fewer "
                "workers",
                confidence="likely",
            )
        )
    elif death is not None:
        explanation = (
            f"Loading the batches without workers ends in the same way: the process {death.how}. "
            f"{meaning(death)}"
        ).strip()
    elif signal == "Killed":
        explanation = (
            "A worker was killed from outside, most often by the kernel for want of memory: every "
            "worker holds the data set and the batches it has ahead." + well
        )
        fixes.append(
            Fix(
                title="fewer workers, a smaller prefetch_factor, and a data set that does not hold "
                "everything in Python lists",
                confidence="likely",
            )
        )
    elif well:
        explanation = "A worker process ended without an exception." + well
        fixes.append(
            Fix(
                title="it happens in workers only: open files, connections and native libraries in "
                "the worker (worker_init_fn, or on first use), not before the fork, or start "
                "workers with multiprocessing_context='spawn'",
                confidence="maybe",
            )
        )
    else:
        explanation = "A worker process ended without an exception."
        fixes.append(
            Fix(
                title="num_workers=0 shows the error where it happens; threads or locks from "
                "before the fork are the likeliest reason",
                confidence="maybe",
            )
        )
    extra = [("signal", signal)] if signal else []
    if death is not None:
        if death.item is not None:
            extra.append(("sample of the data set", str(death.item)))
        if death.call is not None:
            extra.append(("last call", death.call))
    title = (
        f"a worker of the data loader {'was killed (' + signal + ')' if signal else 'ended'}"
        + (f" at sample {death.item}" if death is not None and death.item is not None else "")
    )
    claim = failure_claim(
        rule,
        evidence,
        title=title,
        explanation=explanation,
        fixes=fixes,
        specificity=Specificity.SPECIAL,
        extra=extra,
    )
    where = death.frames[-1] if death is not None and death.frames else evidence.data_site
    culprit = Culprit(
        kind="data",
        op=death.call if death is not None else None,
        location=where,
        dataset_indices=(death.item,) if death is not None and death.item is not None else (),
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
            culprit=culprit,
            confidence=sure,
            experiments=experiments,
            phase="data",
            evidence=tuple(extra),
        ),
    )
