"""ND711 and ND712: a training process that ended without an exception, or that never went on."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Finding, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.death import DeathFacts
from nanodoc.facts.evidence import Evidence

MEANS = {
    "SIGSEGV": "Code that is not Python read or wrote memory that is not the process's own.",
    "SIGBUS": "A page of a mapped file was not there: a file that was cut short, or shared memory "
    "(/dev/shm) that is full.",
    "SIGABRT": "Code that is not Python called abort(): a C++ exception nobody caught, or a failed "
    "assertion; it says so on stderr.",
    "SIGFPE": "Code that is not Python divided an integer by zero.",
    "SIGILL": "The processor does not know an instruction: a library built for another one.",
    "SIGKILL": "Somebody else ended it: the kernel for want of memory, a scheduler, or a person.",
    "SIGTERM": "Somebody else ended it: a scheduler, or a person.",
}
_SELF = "It sent the signal to itself."
_OWN_SIGNALS = (
    "os.kill",
    "posix.kill",
    "os.abort",
    "posix.abort",
    "signal.raise_signal",
    "_signal.raise_signal",
)
# of the memory there is; beyond it, want of memory is the likeliest reason of a SIGKILL that nobody
# explains
_FULL = 0.85


def short_of_memory(death: DeathFacts) -> bool:
    """The process was ended for want of memory: the kernel counted it, or it held nearly all there
    is."""
    if death.signal != "SIGKILL":
        return False
    return death.killed_for_memory or bool(
        death.peak_memory and death.memory_limit and death.peak_memory > _FULL * death.memory_limit
    )


def meaning(death: DeathFacts) -> str:
    """What such an end tells."""
    return _SELF if death.call in _OWN_SIGNALS else MEANS.get(death.signal or "", "")


def place_of(death: DeathFacts) -> str:
    """ "in the forward of step 3"."""
    if death.phase == "setup":
        return "while the recipe was built"
    if death.phase == "data":
        return f"while the batch of step {death.step} was loaded"
    return f"in the {death.phase} of step {death.step}"


def death_claim(
    rule: Rule,
    death: DeathFacts,
    *,
    title: str,
    explanation: str,
    fixes: Iterable[Fix] = (),
    specificity: Specificity = Specificity.FAMILY,
) -> Claim:
    """The claim of `rule` on the end of the process, at the innermost line of the user's that is
    known."""
    where = death.frames[-1] if death.frames else None
    evidence = [
        (
            f"frame {i}",
            f"{span.file}:{span.line} in {span.function}: "
            f"{span.code.splitlines()[0] if span.code else ''}",
        )
        for i, span in enumerate(death.frames)
    ]
    if death.known_from:
        evidence.insert(0, ("line known from", death.known_from))
    if death.call is not None:
        evidence.insert(0, ("last call", death.call))
    if death.item is not None:
        evidence.insert(0, ("sample of the data set", str(death.item)))
    experiments: tuple[dict[str, str | None], ...] = ()
    if death.again is not None:
        outcome = "ends in the same way" if death.again else "does not end in this way"
        experiments = ({"name": "the same run again", "outcome": outcome, "loss": None},)
    if death.again_note:
        evidence.append(("second run", death.again_note))
    return Claim(
        root=("death",),
        specificity=specificity,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            # that it ended is a fact; its line is as sure as it was seen, and surer where it was
            # seen twice
            confidence=confidence(
                0.3 if death.again is False else 0.45,
                0.25 if where is not None else 0.0,
                0.2 if death.again else 0.0,
            ),
            title=title,
            explanation=explanation,
            culprit=Culprit(
                kind="data"
                if death.item is not None
                else "op"
                if where is not None
                else "environment",
                op=death.call,
                module=death.module,
                module_type=death.module_type,
                location=where,
                dataset_indices=(death.item,) if death.item is not None else (),
            ),
            phase=death.phase,
            step=death.step if death.phase != "setup" else None,
            evidence=tuple(evidence),
            experiments=experiments,
            fixes=tuple(fixes),
        ),
    )


def _process_died(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    death = evidence.death
    if death is None or death.silent_for is not None or death.in_worker or short_of_memory(death):
        return
    means = meaning(death) or (
        "Whoever called it meant to: no report, no exit handler and no `finally` runs after "
        "os._exit."
    )
    where = "" if death.frames else " Nothing was left that tells the line."
    yield death_claim(
        rule,
        death,
        title=f"the training process {death.how}",
        explanation=f"The training process {death.how} {place_of(death)}. {means}{where}",
    )


def _hung_step(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    death = evidence.death
    if death is None or death.silent_for is None or death.in_worker:
        return
    said = f"The training {death.how}, {place_of(death)}, and was ended."
    waits = "" if death.frames else " It did not say where it is."
    fixes = [
        Fix(
            title="where a step takes that long by nature, give it more with --timeout",
            confidence="maybe",
        )
    ]
    if death.phase == "data" and not death.frames:
        title = "where the loader has workers, num_workers=0 shows which sample hangs"
        if death.again is False:
            title = (
                "it hangs in workers only: a lock that was held, or a thread that ran, before the "
                "fork; multiprocessing_context='spawn' starts workers without them"
            )
        fixes.insert(0, Fix(title=title, confidence="maybe"))
    yield death_claim(
        rule, death, title=f"the training {death.how}", explanation=said + waits, fixes=fixes
    )


RULES = (
    Rule(
        code="ND711",
        name="process-died",
        severity="critical",
        summary="the training process was killed, crashed, or ended itself",
        check=_process_died,
        doc="""\
## What it checks
How the process that runs the training ended: a signal (SIGSEGV, SIGBUS, SIGABRT, SIGKILL …) or os._exit. The line is the one of the
stack that the dying process left, or of a second run in a fresh process that notes every line down; the step and the phase are always
known.

## Why it matters
There is no traceback: Python was not asked. What ran last is all there is to go by.

## Example
    Segmentation fault (core dumped)

## Fix
The underlined line called what crashed: an extension built for another torch, a pointer that outlived its tensor, a worker pool
that was forked after threads were started. After a SIGKILL look at memory first (`dmesg`), then at the scheduler's limits.

## Options
`--budget` limits the second run. `--in-process` runs the training in nanodoc's own process, where nothing outlives a crash.

## See also
ND704 out-of-memory, ND708 loader-worker-died, ND712 hung-step
""",
    ),
    Rule(
        code="ND712",
        name="hung-step",
        severity="critical",
        summary="the training gave no sign of life for as long as --timeout allows",
        check=_hung_step,
        doc="""\
## What it checks
With `--timeout`: that a step is finished, or its next phase begun, within that time. Where not, the process is asked for its stack
and ended. Where it waits for a loader's workers, the same batches are loaded without workers, which tells the line and the sample.

## Why it matters
A deadlock (a lock taken twice, a worker pool forked with a lock held, a collective that another rank never enters) looks like slow
training for hours.

## Example
    nanodoc run train.py:build --timeout 5m

## Fix
The underlined line waits: see for what.

## Options
`--timeout 90s`: there is no limit by default.

## See also
ND711 process-died, ND804 desynchronised-ranks
""",
    ),
)
