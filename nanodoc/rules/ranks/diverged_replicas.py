"""## What it checks
At some steps each rank keeps digests of its gradients, when backward has ended and when the
optimizer uses them, and of its weights, when the optimizer has stepped and when the step is over.
When every rank has finished they are compared, and the first that differs says what happened.
Compared are the parameters that should be the same: those of a DistributedDataParallel, and those
that were the same before the first step and got the same gradient then, as by hand or in tensor
parallel. Shards, and communication hooks under which ranks step by themselves, are left alone.

Also when every rank has finished: digests of every trained parameter are compared between ranks if
a DistributedDataParallel over all ranks keeps them equal, or if several ranks hold the same part in
hybrid sharding. Without either, parameters that started equal and end different are an info: it may
be intended.

## Why it matters
If replicas differ, the run trains as many models as there are ranks, and saves one of them.

## Example
    if rank == 0:
        model.module.head.reset_parameters()

## Fix
Wrap the model in DistributedDataParallel, and change parameters before that, or in the same way on
every rank.

## See also
ND801 rank-local-failure
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import RankOutcome, spans_of
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import count
from nanodoc.rules.ranks.courses import (
    CHANGED,
    EARLIER,
    RATES,
    STARTED,
    UNREDUCED,
    UPDATED,
    WRONG,
    Parting,
    parting,
)

_OTHERWISE = (
    "DistributedDataParallel gives every rank the same gradient, but the parameters differ, so "
    "something else changed them on some ranks: an update outside the optimizer, a condition on "
    "the rank, weights loaded after wrapping, a forward that bypasses the wrapper "
    "(model.module(x))."
)

_SHARDED = (
    "Hybrid sharding gives the ranks that hold the same part the same gradient, but the parts "
    "differ: they started with different weights (fully_shard() does not send them from one rank "
    "to the others), or something other than the optimizer changed them on some ranks."
)

_UNWRAPPED = (
    "They started equal, and the ranks are in one process group, but nothing gives them the same "
    "gradient: no DistributedDataParallel wraps the model."
)


_PART = re.compile(r" \(part [\d, ]+\)(?= \[)")


@rule(
    "ND802",
    "diverged-replicas",
    "critical",
    "ranks that should hold the same parameters do not",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    ranks = evidence.ranks
    found = parting(ranks) if len(ranks) > 1 else None
    if found is not None:
        yield _parted(rule, evidence, found)
        return
    if not _are_known(ranks):
        return
    held = [dict(rank.fingerprints) for rank in ranks]
    # other parameters, or other shapes: other models
    if any(list(map(_whole, one)) != list(map(_whole, held[0])) for one in held):
        return
    names = list(dict.fromkeys(name for one in held for name in one))
    differing = [name for name in names if len({one[name] for one in held if name in one}) > 1]
    sharded = any(_PART.search(name) for name in names)
    wrapped = sharded or all(rank.wrapped for rank in ranks)
    if not differing or not (
        wrapped or (ranks[0].before and len({rank.before for rank in ranks}) == 1)
    ):
        return
    shown = [name.partition(" [")[0] for name in differing]
    first = differing[0]
    holders = [
        (rank.rank, one[first]) for rank, one in zip(ranks, held, strict=True) if first in one
    ]
    usual = Counter(digest for _, digest in holders).most_common(1)[0][0]
    odd = [rank for rank, digest in holders if digest != usual] or [ranks[-1].rank]
    why, fix = _account(sharded=sharded, wrapped=wrapped)
    yield Claim(
        root=("replicas",),
        specificity=Specificity.FAMILY,
        finding=rule.finding(
            # local steps between averages, an ensemble: it may be meant
            severity=rule.severity if wrapped else "info",
            confidence=confidence(
                0.8 if wrapped else 0.4, 0.5 if len(odd) < len(ranks) / 2 else 0.2
            ),
            title=f"after {count(ranks[0].steps, 'step')} the ranks hold different parameters",
            explanation=f"{count(len(shown), 'parameter')} of {len(names)} "
            f"differ{'s' if len(shown) == 1 else ''} between ranks, the first {shown[0]}. "
            f"{why}",
            culprit=Culprit(kind="parameter", parameter=shown[0]),
            phase="optimizer",
            step=ranks[0].steps - 1,
            rank=odd[0],
            evidence=(
                (
                    "differing",
                    ", ".join(shown[:4])
                    + (f" and {len(shown) - 4} more" if len(shown) > 4 else ""),
                ),
                ("ranks that differ from most", spans_of(odd)),
            ),
            fixes=(Fix(title=fix, confidence="likely" if wrapped else "maybe"),),
        ),
    )


def _are_known(ranks: Sequence[RankOutcome]) -> bool:
    """What they hold at the end is, after as many steps, and nothing keeps them apart."""
    apart = any(rank.course is not None and rank.course.kept_apart for rank in ranks)
    known = len(ranks) > 1 and all(rank.fingerprints for rank in ranks)
    return known and not apart and len({rank.steps for rank in ranks}) == 1


def _parted(rule: Rule, evidence: Evidence, found: Parting) -> Claim:
    """What the digests of some steps show."""
    more = f" and {len(found.names) - 1} more" if len(found.names) > 1 else ""
    course = evidence.ranks[0].course
    cast = course.cast_at if course is not None else None
    clipped = course.clipped_at if course is not None else None
    built = next((site for site in evidence.optimizer_sites if site is not None), None)
    # past the wrapper, a cast that came before it was made has lost nothing
    cast = cast if found.wrapped and found.through else None
    words = _unreduced(found, cast) if found.kind == UNREDUCED else _words(found)
    site = {UNREDUCED: cast, CHANGED: clipped}.get(found.kind) or built
    # without a wrapper, a phase of local steps may be meant
    local = found.kind == UNREDUCED and found.idle and not any(r.wrapped for r in evidence.ranks)
    return Claim(
        root=("replicas",),
        specificity=Specificity.EXACT,
        finding=rule.finding(
            severity="info" if local else rule.severity,
            # seen again, it is no chance; where a step before hides the cause, less is known
            confidence=confidence(
                0.4 if found.kind == EARLIER else 0.7, 0.7 * found.rows[0] / found.rows[1]
            ),
            title=words[0],
            explanation=f"First seen in step {found.step}, of {found.names[0]}{more} "
            f"({len(found.names)} of {count(found.of, 'parameter')} that should be the same). "
            f"{words[1]}",
            culprit=Culprit(kind="parameter", parameter=found.names[0], location=site),
            phase="optimizer",
            step=found.step,
            rank=found.ranks[0],
            evidence=(
                ("parameters", ", ".join(found.names[:4])),
                ("first step seen", found.step),
                ("steps that end apart", f"{found.rows[0]} of {found.rows[1]} looked at"),
                ("ranks that differ from most", spans_of(found.ranks)),
            ),
            fixes=(Fix(title=words[2], confidence="likely"),),
        ),
    )


def _unreduced(found: Parting, moved: SourceSpan | None) -> tuple[str, str, str]:
    """(title, explanation, fix)"""
    if not found.wrapped:
        return (
            "the gradients are no longer reduced over the ranks: they differ",
            "They were the same on all ranks before. Here every parameter has another gradient on "
            "each rank when the optimizer uses it: this step goes past the wrapper, or past the "
            "reduction by hand.",
            "reduce the gradients in every step in which an optimizer steps",
        )
    title = "DistributedDataParallel does not reduce the gradients: they differ between ranks"
    apart = "Every parameter has another gradient on each rank when backward has ended."
    if not found.through:
        return (
            title,
            f"{apart} The step does not call the wrapper: model.module(x), or the model itself, "
            "passes it by.",
            "call the wrapper in every step",
        )
    where = f" {moved.place} changed the dtype of the parameters." if moved is not None else ""
    return (
        title,
        f"{apart} The step calls the wrapper, but the hooks that reduce hang on the parameters as "
        f"they were when it was made: a cast or a move after that loses them.{where}",
        "move and cast the model before it is wrapped",
    )


def _words(found: Parting) -> tuple[str, str, str]:
    """As `_unreduced`, of all other kinds."""
    rank = f"rank{'s' if len(found.ranks) > 1 else ''} {spans_of(found.ranks)}"
    if found.kind == STARTED:
        return (
            "the ranks get the same gradients, but started with other weights",
            "Their gradients are the same at every step that was looked at, and their weights were "
            "not the same before the first one: each rank trains another model.",
            "start with the same weights on every rank: broadcast them from rank 0, or seed alike",
        )
    if found.kind == WRONG:
        return (
            f"gradients arrive differently on {rank}",
            "The other parameters have the same gradients on all ranks: the reduction lost or "
            "changed a part of these on the way, or something wrote to them on one rank.",
            "look for what writes to these gradients on one rank only; else update the backend of "
            "the process group",
        )
    if found.kind == CHANGED:
        return (
            f"{rank} changes gradients between backward and the optimizer's step",
            "They were the same on all ranks when backward had ended, or when they were about to "
            "be clipped, and differ when the optimizer uses them: the ranks clip or scale by "
            "different numbers, or over different parameters.",
            "clip by one norm over the same parameters on every rank",
        )
    if found.kind == RATES:
        told = ", ".join(f"{rate:.3g}" for rate in found.rates)
        return (
            "the ranks step with different learning rates",
            f"The gradients are the same. The learning rates of the ranks are {told}.",
            "let every rank's schedule see the same number: reduce it over the ranks before",
        )
    if found.kind == UPDATED:
        return (
            f"with the same gradients, the optimizer of {rank} updates the weights differently",
            "The gradients and the learning rates are the same. The state of the optimizer "
            "differs, or the step was left out there.",
            "load the same optimizer state on every rank, and step under the same conditions",
        )
    if found.kind == EARLIER:
        return (
            f"the weights of {rank} had left those of the others before step {found.step}",
            "The steps in which the ranks were looked at have the same gradients on all of them. "
            "They parted in a step between, or between two steps.",
            "look for what only one rank does, or does not do in every step",
        )
    return (
        f"something writes to the weights of {rank} after the optimizer's step",
        "Gradients and updates are the same on all ranks, the weights at the end of the step are "
        "not.",
        "change weights in the same way on every rank",
    )


def _whole(name: str) -> str:
    """Without which part of it a rank holds."""
    return _PART.sub("", name)


def _account(*, sharded: bool, wrapped: bool) -> tuple[str, str]:
    """Why they differ, and what to do."""
    if sharded:
        return _SHARDED, (
            "start with the same weights on every rank (one seed, or a broadcast), and change "
            "them in the same way"
        )
    if wrapped:
        return _OTHERWISE, (
            "change parameters in the same way on every rank, and before the model is wrapped"
        )
    return _UNWRAPPED, (
        "if they should train one model: torch.nn.parallel.DistributedDataParallel(model)"
    )
