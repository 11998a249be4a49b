"""## What it checks
At the end of the run, each part of the last step that torch.compile has compiled is called twice on
the same inputs and random state: compiled, and as its source says. Its outputs and gradients may
differ by rounding, which is measured: its inputs and weights are rounded otherwise a few times, and
in half precision the float32 result decides. Reported if they differ by more, the same each time.
Then each value between its ops is compared, and the finding names the first op that differs. Parts
that draw random numbers are not asked, unless `torch._inductor.config.fallback_random` is set.

## Why it matters
The training learns another function than the source says, and than an evaluation without
torch.compile computes. Frequent causes: a branch on `torch.compiler.is_compiling()`, a custom op
that writes into its inputs without saying so, a wrong decomposition, a value that was frozen when
the code was compiled (`assume_constant_result`), a bug of the compiler.

## Example
    if torch.compiler.is_compiling():
        return x.mean(1)                      # counts padding
    return (x * mask).sum(1) / mask.sum(1)

## Fix
    return (x * mask).sum(1) / mask.sum(1)

## See also
ND901 not-reproduced
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.compiled import CompiledFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key


@rule(
    "ND674",
    "compiled-differs",
    "critical",
    "compiled code that computes something else than its source",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.compiled
    if found is None:
        return
    op, values = found.op, found.values
    where = op.location if op is not None and op.location is not None else found.location
    tripped = evidence.trip is not None
    yield Claim(
        # a step that is healthy when it is run again, uncompiled, is explained
        root=("not-reproduced",) if tripped else location_key(where) or ("compiled", found.part),
        specificity=Specificity.EXACT,
        stage=Stage.STEP,
        finding=rule.finding(
            confidence=confidence(0.8, 0.5 if op is not None or found.stale else 0.0),
            title=f"compiled, {found.part} computes something else than its source",
            explanation=f"Called on the same inputs, its {values.what} holds {values.compiled:.6g} "
            f"compiled and {values.eager:.6g} as the source says. {_first(found)}",
            culprit=Culprit(
                kind="op" if op is not None else "module",
                op=op.name if op is not None else None,
                module=found.part if found.part_type not in (None, found.part) else None,
                module_type=found.part_type,
                location=where,
            ),
            phase="backward" if values.what.startswith("gradient") else "forward",
            step=found.step,
            evidence=tuple(_notes(found)),
            fixes=(Fix(title=_fix(found), confidence="likely"),),
        ),
    )


def _first(found: CompiledFacts) -> str:
    op = found.op
    if found.stale:
        return (
            "Compiled anew, it computes what its source says: it holds values of an earlier call."
        )
    if op is None:
        return "No single op could be named."
    if op.traced:
        return (
            f"The source does not compute this {op.name}: the compiled code has taken it instead."
        )
    assert op.values is not None
    return (
        f"The first op that differs is {op.name}: {op.values.compiled:.6g} compiled, "
        f"{op.values.eager:.6g} by itself."
    )


def _fix(found: CompiledFacts) -> str:
    if found.op is not None and found.op.traced:
        return "compute the same in both cases"
    if found.stale:
        return "give what changes between calls as an argument, or leave assume_constant_result out"
    return "put @torch.compiler.disable on the function that calls this op, or mend the op"


def _notes(found: CompiledFacts) -> Iterable[tuple[str, object]]:
    values = found.values
    yield "relative difference", f"{values.apart:.1g}"
    yield "rounding explains", f"{values.allowed:.1g}"
    if found.location is not None:
        yield "compiled part", f"{found.location.place}: {found.location.code}"
