"""ND711 and ND712: a training process that ended without an exception, or that never went on."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import OBSERVED, Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.death import DeathFacts
from nanodoc.rules.crash.failure_claims import place_in

MEANS = {
    "SIGSEGV": "Native code read or wrote memory that does not belong to the process.",
    "SIGBUS": "A page of a mapped file was missing: the file was truncated, or shared memory "
    "(/dev/shm) is full.",
    "SIGABRT": "Native code called abort(): an uncaught C++ exception or a failed assertion; "
    "stderr has its message.",
    "SIGFPE": "Native code divided an integer by zero.",
    "SIGILL": "The processor does not support an instruction: a library was built for a different "
    "processor.",
    "SIGKILL": "It was ended from outside: by the kernel because memory ran out, by a scheduler, "
    "or by a person.",
    "SIGTERM": "It was ended from outside: by a scheduler or a person.",
}


_SELF = "The process sent the signal to itself."


_OWN_SIGNALS = (
    "os.kill",
    "posix.kill",
    "os.abort",
    "posix.abort",
    "signal.raise_signal",
    "_signal.raise_signal",
)


# nothing in the process sends them to itself
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM")


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
    """ "in the backward pass of step 3"."""
    if death.phase == "data":
        return f"while the batch of step {death.step} was loaded"
    return place_in(death.phase, death.step)


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
    return Claim(
        root=("death",),
        specificity=specificity,
        finding=rule.finding(
            confidence=_sure(death),
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
            step=death.step if death.phase not in ("setup", "script") else None,
            evidence=tuple(_seen(death)),
            experiments=_run_again(death),
            fixes=tuple(fixes),
        ),
    )


def _sure(death: DeathFacts) -> float:
    """A signal from elsewhere, or from the underlined line, is itself the cause. Else that it ended
    is a fact, and its line as sure as it was seen, and surer where it was seen twice."""
    sent = death.call in _OWN_SIGNALS and bool(death.frames)
    if (sent or death.signal in _FROM_OUTSIDE) and death.again is not False:
        return OBSERVED
    return confidence(
        0.3 if death.again is False else 0.45,
        0.25 if death.frames else 0.0,
        0.2 if death.again else 0.0,
    )


def _seen(death: DeathFacts) -> list[tuple[str, str]]:
    """What was seen of the end: the sample, the last call, the frames and the second run."""
    evidence = [
        (
            f"frame {i}",
            f"{span.place} in {span.function}: {span.code.splitlines()[0] if span.code else ''}",
        )
        for i, span in enumerate(death.frames)
    ]
    if death.known_from:
        evidence.insert(0, ("line known from", death.known_from))
    if death.call is not None:
        evidence.insert(0, ("last call", death.call))
    if death.item is not None:
        evidence.insert(0, ("sample of the data set", str(death.item)))
    if death.again_note:
        evidence.append(("second run", death.again_note))
    return evidence


def _run_again(death: DeathFacts) -> tuple[dict[str, str | None], ...]:
    """The second run as an experiment, where there was one."""
    if death.again is None:
        return ()
    outcome = "ends in the same way" if death.again else "does not end in this way"
    return ({"name": "the same run again", "outcome": outcome, "loss": None},)
