"""## What it checks
An out-of-memory exception on the host or a GPU, and a process that the kernel killed because memory
ran out. The step is run until it fails again, and everything autograd keeps for the backward pass
is counted by line and module; parameters, gradients, optimizer state, buffers and the batch are
counted from the tensors themselves.

## Why it matters
The message names the last request, which is rarely the large one.

## Example
    torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.

## Fix
If activations use most memory: a smaller batch with accumulation, torch.utils.checkpoint, bfloat16.
If one tensor asks for more than there is: its shape is wrong.

## See also
ND510 growing-graph, ND711 process-died
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.crash import CrashFacts, FailedCall, MemoryFacts
from nanodoc.facts.death import DeathFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.facts.failure_kinds import out_of_memory
from nanodoc.rules.base import Account
from nanodoc.rules.crash.death_claims import death_claim, place_of, short_of_memory
from nanodoc.rules.crash.failure_claims import failure_claim
from nanodoc.rules.crash.mismatch_claims import origin

# of the limit; then parameters, gradients, states and activations are not what fills the memory
_LITTLE = 0.25

_UNITS = {
    "bytes": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "PiB": 1 << 50,
    "EiB": 1 << 60,
}

_ASKED = re.compile(
    r"(?:[Tt]ried to allocate|Unable to allocate) (?P<number>[\d.]+) ?(?P<unit>bytes|[KMGTPE]iB)"
)

_OVERFLOW = re.compile(r"Storage size calculation overflowed with sizes=\[(?P<sizes>[\d, ]+)\]")


@rule(
    "ND704",
    "out-of-memory",
    "critical",
    "memory ran out; what holds it",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure, death = evidence.failure, evidence.death
    if death is not None and short_of_memory(death) and not death.in_worker:
        yield _killed(rule, death)
    if failure is None or not out_of_memory(failure):
        return
    crash = evidence.crash or CrashFacts()
    memory, call, asked = crash.memory, crash.call, _asked(failure)
    extra = [*_table(memory)] if memory is not None else []
    if (
        asked is not None
        and memory is not None
        and memory.limit is not None
        and asked > memory.limit
    ):
        extra = [*_arguments(call), *extra]
        account = _too_large(call, asked, memory.limit, memory.limit_of)
    else:
        account = _too_much(memory, asked)
    claim = failure_claim(
        rule,
        evidence,
        title=account.title,
        explanation=account.explanation,
        fixes=account.fixes,
        specificity=Specificity.SPECIAL,
        extra=extra,
    )
    where = claim.finding.culprit.location
    # it may fail elsewhere when run again
    if call is not None and (
        where is None or call.location is None or call.location.line == where.line
    ):
        culprit = replace(
            claim.finding.culprit, op=call.name, module=call.module, module_type=call.module_type
        )
        claim = replace(claim, finding=replace(claim.finding, culprit=culprit))
    yield claim


def _killed(rule: Rule, death: DeathFacts) -> Claim:
    """A process that the kernel killed."""
    held = f" It held up to {shown_bytes(death.peak_memory)}" if death.peak_memory else ""
    of = (
        f" of the {shown_bytes(death.memory_limit)} of {death.memory_limit_of}"
        if death.memory_limit
        else ""
    )
    counted = (
        " The kernel recorded an out-of-memory kill while it ran."
        if death.killed_for_memory
        else ""
    )
    return death_claim(
        rule,
        death,
        title="the kernel killed the training because memory ran out",
        explanation=f"The training was killed {place_of(death)}.{held}{of}.{counted}",
        fixes=_ways_out(None),
        specificity=Specificity.SPECIAL,
    )


def _too_large(call: FailedCall | None, asked: float, limit: float, limit_of: str) -> Account:
    """One tensor that is larger than all memory."""
    name = f"{call.name} asks" if call is not None else "one tensor asks"
    return Account(
        title=f"{name} for {shown_bytes(asked)}, more than there is",
        explanation=f"{name[0].upper()}{name[1:]} for {shown_bytes(asked)} in one piece, more than "
        f"all of {limit_of} has ({shown_bytes(limit)}): "
        "a wrong size, not a model that is too large. Look for what is repeated, expanded, "
        "multiplied out or broadcast.",
        fixes=(
            Fix(
                title="check the shapes of its arguments: a dimension is repeated, or two long "
                "ones meet in a broadcast or an outer product",
                confidence="likely",
            ),
        ),
    )


def _too_much(memory: MemoryFacts | None, asked: float | None) -> Account:
    """All that is held together is more than there is."""
    wanted = (
        f"The call asked for {shown_bytes(asked)} more" if asked is not None else "Memory ran out"
    )
    story = _story(memory) if memory is not None and memory.known else ""
    return Account(
        title=f"out of memory{f' at {shown_bytes(asked)} more' if asked is not None else ''}",
        explanation=f"{wanted}. {story}".strip(),
        fixes=tuple(_ways_out(memory)),
    )


def _arguments(call: FailedCall | None) -> list[tuple[str, str]]:
    """The tensors given to the call that raised."""
    given = call.given if call is not None else ()
    return [
        (f"argument {i + 1}", f"{tensor.dtype} {list(tensor.shape)}{origin(tensor)}")
        for i, tensor in enumerate(given)
    ]


def shown_bytes(number: float) -> str:
    """1536 as "1.5 KiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if number >= _UNITS[unit]:
            return f"{number / _UNITS[unit]:.3g} {unit}"
    return f"{number:.0f} bytes"


def _asked(failure: Failure) -> float | None:
    """Bytes that were asked for in one piece, as the message says."""
    match = _ASKED.search(failure.message)
    if match is not None:
        return float(match["number"]) * _UNITS[match["unit"]]
    match = _OVERFLOW.search(failure.message)
    return (
        float(math.prod(int(size) for size in match["sizes"].split(",")))
        if match is not None
        else None
    )


def _story(memory: MemoryFacts) -> str:
    parts = [
        (memory.parameters, "parameters"),
        (memory.gradients, "gradients"),
        (memory.optimizer, "optimizer state"),
        (memory.buffers, "buffers"),
        (memory.batch, "the batch"),
        (memory.saved, "activations kept for the backward pass"),
    ]
    largest = max(parts)
    return (
        f"Of {shown_bytes(memory.known)} that are accounted for, {shown_bytes(largest[0])} are "
        f"{largest[1]}."
    )


def _table(memory: MemoryFacts) -> Iterable[tuple[str, str]]:
    for name, number in (
        ("parameters", memory.parameters),
        ("gradients", memory.gradients),
        ("optimizer state", memory.optimizer),
        ("buffers", memory.buffers),
        ("batch", memory.batch),
        ("kept for backward", memory.saved),
    ):
        if number:
            yield name, shown_bytes(number)
    for held in memory.largest:
        where = (
            held.location.place
            if held.location is not None
            else held.module or "outside any module"
        )
        yield (
            f"kept by {where}",
            f"{shown_bytes(held.bytes)} in {held.count} tensor{'s' if held.count > 1 else ''}, "
            f"the largest {held.dtype} {list(held.shape)}",
        )
    if memory.by_module:
        yield (
            "kept by module",
            ", ".join(
                f"{name or 'outside any'} {shown_bytes(number)}"
                for name, number in memory.by_module[:4]
            ),
        )


def _ways_out(memory: MemoryFacts | None) -> Iterable[Fix]:
    if memory is not None and memory.limit is not None and memory.known < _LITTLE * memory.limit:
        yield Fix(
            title=f"the training itself keeps only {shown_bytes(memory.known)} of "
            f"{shown_bytes(memory.limit)}: check the tensors made before this line, what is kept "
            "from step to step (a list of losses with their graphs), and what else uses this "
            "memory",
            confidence="maybe",
        )
        return
    saved = memory is None or memory.saved >= memory.known / 2
    if saved:
        size = f" (it is {memory.batch_size})" if memory is not None and memory.batch_size else ""
        yield Fix(
            title=f"use a smaller batch{size}, and accumulate gradients over several",
            confidence="likely",
        )
        module = (
            next((name for name, _ in memory.by_module if name), None)
            if memory is not None
            else None
        )
        yield Fix(
            title=f"torch.utils.checkpoint around {module or 'the layers that keep most'}: "
            "activations are recomputed instead of kept",
            confidence="likely",
        )
        yield Fix(title="bfloat16 autocast: activations take half the memory", confidence="maybe")
    elif memory is not None and memory.optimizer >= memory.parameters:
        yield Fix(
            title="use an optimizer with less state (8-bit or factored Adam, SGD), or shard the "
            "state over ranks",
            confidence="maybe",
        )
    else:
        yield Fix(
            title="keep the weights in bfloat16, or shard them over ranks (FSDP)",
            confidence="maybe",
        )
