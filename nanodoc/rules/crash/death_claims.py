"""ND711 and ND712: a training process that ended without an exception, or that never went on."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.death import DeathFacts

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
    if death.phase == "script":
        return "outside of its training's steps"
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
    return Claim(
        root=("death",),
        specificity=specificity,
        finding=rule.finding(
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
            step=death.step if death.phase not in ("setup", "script") else None,
            evidence=tuple(_seen(death)),
            experiments=_run_again(death),
            fixes=tuple(fixes),
        ),
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
