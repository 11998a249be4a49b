"""ND801 to ND804 and ND806: what only shows when the ranks of a distributed run are looked at
together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Finding, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import CLEAN, DIED, ENDED, HUNG, LOST, ROOTS, WELL, RankOutcome, first_root
from nanodoc.rules.base import count
from nanodoc.rules.crash.failures import failure_claim
from nanodoc.rules.ranks.rank_docs import (
    DESYNCHRONISED_DOC,
    DIVERGED_DOC,
    LOCAL_DOC,
    SAME_BATCHES_DOC,
    UNUSED_DOC,
)

_STEPS_ALIKE = 3  # at least; two batches may be alike by chance of a small data set
_PHASES = ("", "setup", "data", "forward", "backward", "unscale", "optimizer")
_UNREDUCED = re.compile(r"Expected to have finished reduction in the prior iteration")
_INDICES = re.compile(r"did not receive grad for rank \d+: (?P<indices>[\d ]+)")
_NAMES = re.compile(r"which did not receive grad for rank \d+: (?P<names>[A-Za-z_][\w., ]*)")

_OTHERWISE = (
    "DistributedDataParallel gives every rank the same gradient; the parameters differ all the "
    "same, so something else changed them on some ranks: an update outside the optimizer, a "
    "condition on the rank, weights loaded after wrapping, a forward that goes past the wrapper "
    "(model.module(x))."
)
_UNWRAPPED = (
    "They began alike, the ranks are in one process group, and nothing gives them the same "
    "gradient: no DistributedDataParallel wraps the model."
)


def named(ranks: Sequence[int]) -> str:
    """ "rank 1", "ranks 0, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _rank_local_failure(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    first = first_root(evidence.ranks)
    if first is None or first.ended == HUNG:
        return
    alike = [
        one.rank
        for one in evidence.ranks
        if one.ended in ROOTS and not one.peer and one.ended != HUNG
    ]
    others = [one for one in evidence.ranks if one.rank not in alike]
    if not others:  # the same everywhere: no question of ranks
        return
    given = [one.rank for one in others if one.ended == CLEAN]
    waited = [one for one in others if one.ended in (ENDED, HUNG) or one.peer]
    how = {
        "sick": "made a value that is not finite",
        "failed": "raised",
        "died": "died",
        "lost": "is gone",
    }[first.ended]
    where = (
        f"in the {first.phase} of step {first.step}"
        if first.step is not None
        else "before its first step"
    )
    parts = [f"Rank {first.rank} of {len(evidence.ranks)} {how} {where}, by itself."]
    if first.ended == DIED and first.waits:
        parts = [
            f"Rank {first.rank} of {len(evidence.ranks)} was aborted inside a collective {where}. "
            "That is how gloo ends ranks that have entered different collectives, "
            "or the same one with different shapes; it says so on stderr."
        ]
    if given:
        parts.append(
            f"{named(given).capitalize()}, run again without the others, "
            f"{'are' if len(given) > 1 else 'is'} finite on "
            f"{'their' if len(given) > 1 else 'its'} own batch: what is not finite there arrived "
            "by the all-reduce."
        )
    if waited:
        only = "waited in one" if first.ended == DIED and first.waits else "only waited for it"
        parts.append(f"{named([one.rank for one in waited]).capitalize()} {only}.")
    effects = [
        (f"rank {rank}: gradients that are not finite arrived by the all-reduce", first.step)
        for rank in given
    ]
    effects += [
        (
            f"rank {one.rank}: {one.why or 'waited'}"
            + (f" at {one.location.file}:{one.location.line}" if one.location else ""),
            one.step,
        )
        for one in waited
    ]
    yield Claim(
        root=("ranks",),
        specificity=Specificity.FAMILY,
        stage=Stage.NOTE,  # after the cause itself
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(0.5, 0.4 if first.why else 0.0, 0.5 if given or waited else 0.0),
            title=f"{named(alike)} of {len(evidence.ranks)} failed, "
            f"{named([one.rank for one in others])} did not",
            explanation=" ".join(parts),
            culprit=Culprit(
                kind="op" if first.location is not None else "environment", location=first.location
            ),
            phase=first.phase or "forward",
            step=first.step,
            rank=first.rank,
            evidence=tuple((f"rank {one.rank}", _told(one)) for one in evidence.ranks),
            effects=tuple(effects),
        ),
    )


def _told(one: RankOutcome) -> str:
    words = {
        WELL: "through",
        CLEAN: "finite by itself",
        "sick": "not finite by itself",
        "failed": "raised",
        "died": "died",
        HUNG: "stood still",
        ENDED: "waited",
        LOST: "gone",
    }
    where = f" in the {one.phase} of step {one.step}" if one.phase and one.step is not None else ""
    why = f": {one.why}" if one.why and one.ended not in (WELL, CLEAN) else ""
    return (
        f"{words[one.ended]}{where if one.ended != WELL else ''}, {count(one.steps, 'step')} "
        f"done{why}"
    )


def _desynchronised_ranks(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    hung = [one for one in evidence.ranks if one.ended == HUNG]
    through = [one for one in evidence.ranks if one.ended == WELL]
    left = [one for one in evidence.ranks if one.ended == ENDED and "was through after" in one.why]
    # the one that hung was ended, and left them
    peers = [one for one in evidence.ranks if one.peer]
    early = bool(peers and through)  # a rank that waited for one that was through
    if len(evidence.ranks) < 2 or not (hung or left or early):
        return
    if any(one.ended in ROOTS and one.ended != HUNG and not one.peer for one in evidence.ranks):
        return
    waiting = hung + left + peers
    if through:
        behind = sorted(through, key=lambda one: one.steps)
        title = (
            f"{named([one.rank for one in behind])} ended after {count(behind[0].steps, 'step')}, "
            f"{named([one.rank for one in waiting])} went on and "
            f"wait{'s' if len(waiting) == 1 else ''}"
        )
        why = (
            "A collective needs every rank. Ranks with fewer batches leave the others waiting for "
            "ever."
        )
        fixes = [
            Fix(
                title="give every rank equally many batches: DistributedSampler(..., "
                "drop_last=True), or model.join() around the loop",
                confidence="likely",
            )
        ]
        if all(one.steps > (other.step or 0) for one in behind for other in waiting):
            why = (
                "They did equally many steps, and the one that was through had entered fewer "
                "collectives: a rank skips one where a step returns early or leaves its backward "
                "out."
            )
            fixes = [
                Fix(
                    title="let every rank take part in every step's collectives: backward on a loss "
                    "times zero instead of a skipped step",
                    confidence="likely",
                )
            ]
    else:
        least = min(map(_progress, waiting))
        behind = [one for one in waiting if _progress(one) == least]
        fixes = []
        if len(behind) == len(waiting):
            title = "all ranks stand still at the same place"
            why = (
                "None is behind another: they wait for something outside, or in collectives of a "
                "different kind or order."
            )
        else:
            ahead = [one.rank for one in waiting if one not in behind]
            title = (
                f"{named([one.rank for one in behind])} stand{'s' if len(behind) == 1 else ''} "
                f"still in the {behind[0].phase} of step {behind[0].step}, {named(ahead)} "
                f"wait{'s' if len(ahead) == 1 else ''} further on"
            )
            why = (
                "The ranks that are further on wait in a collective that the one behind has not "
                "entered."
            )
    first = behind[0]
    yield Claim(
        root=("ranks",),
        specificity=Specificity.SPECIAL,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(
                0.4,
                0.5 if len(behind) < len(evidence.ranks) else 0.0,
                0.4 if first.location is not None else 0.0,
            ),
            title=title,
            explanation=why,
            culprit=Culprit(
                kind="op" if first.location else "environment",
                location=first.location if first.ended != WELL else waiting[0].location,
            ),
            phase=first.phase or "backward",
            step=first.step if first.ended != WELL else waiting[0].step,
            rank=first.rank,
            evidence=tuple(
                (
                    f"rank {one.rank}",
                    _told(one)
                    + (f", at {one.location.file}:{one.location.line}" if one.location else ""),
                )
                for one in evidence.ranks
            ),
            fixes=tuple(fixes),
        ),
    )


def _progress(one: RankOutcome) -> tuple[int, int, bool]:
    """How far it has come; of two in the same phase, the one that waits in a collective is further
    on."""
    return (
        one.step if one.step is not None else -1,
        _PHASES.index(one.phase) if one.phase in _PHASES else 0,
        one.waits,
    )


def _diverged_replicas(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    ranks = evidence.ranks
    if (
        len(ranks) < 2
        or not all(one.fingerprints for one in ranks)
        or len({one.steps for one in ranks}) > 1
    ):
        return
    names = [name for name, _ in ranks[0].fingerprints]
    # other parameters, or other shapes: other models
    if any([name for name, _ in one.fingerprints] != names for one in ranks):
        return
    differing = [
        name for i, name in enumerate(names) if len({one.fingerprints[i][1] for one in ranks}) > 1
    ]
    wrapped = all(one.wrapped for one in ranks)
    if not differing or not (
        wrapped or (ranks[0].before and len({one.before for one in ranks}) == 1)
    ):
        return
    shown = [name.partition(" [")[0] for name in differing]
    index = names.index(differing[0])
    usual = Counter(one.fingerprints[index][1] for one in ranks).most_common(1)[0][0]
    odd = [one.rank for one in ranks if one.fingerprints[index][1] != usual] or [ranks[-1].rank]
    why = _OTHERWISE if wrapped else _UNWRAPPED
    fix = (
        "change parameters on every rank alike, and before the model is wrapped"
        if wrapped
        else "if they are to train one model: torch.nn.parallel.DistributedDataParallel(model)"
    )
    yield Claim(
        root=("replicas",),
        specificity=Specificity.FAMILY,
        finding=Finding(
            code=rule.code,
            name=rule.name,
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
                ("ranks unlike most", ", ".join(map(str, odd))),
            ),
            fixes=(Fix(title=fix, confidence="likely" if wrapped else "maybe"),),
        ),
    )


def _same_batches(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    ranks = evidence.ranks
    if len(ranks) < 2 or not all(one.wrapped and one.batches for one in ranks):
        return
    steps = set.intersection(*({step for step, _ in one.batches} for one in ranks))
    drawn = [tuple(digest for step, digest in one.batches if step in steps) for one in ranks]
    # a batch that comes again and again is somebody's test
    if len(steps) < _STEPS_ALIKE or len(set(drawn)) > 1 or len(set(drawn[0])) < len(steps):
        return
    where = ranks[0].data_site
    yield Claim(
        root=("batches",),
        specificity=Specificity.FAMILY,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(
                0.5, 0.4 if len(steps) > _STEPS_ALIKE else 0.2, 0.2 if where is not None else 0.0
            ),
            title="every rank draws the same batches",
            explanation=f"In all of {count(len(steps), 'step')} that were compared, "
            f"{named([one.rank for one in ranks])} had the same batch, bit by bit. The ranks "
            "compute the same "
            "gradients, and their average is that of one: the training is no faster than on "
            "one device, and sees no more data.",
            culprit=Culprit(kind="data", location=where),
            phase="data",
            step=min(steps),
            evidence=(("steps compared", ", ".join(map(str, sorted(steps)))),),
            fixes=(
                Fix(
                    title="DataLoader(..., sampler=DistributedSampler(dataset)) and "
                    "sampler.set_epoch(epoch); or a seed, or a shard, of each rank's own",
                    confidence="likely",
                ),
            ),
        ),
    )


def _unused_in_ddp(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if failure is None or not _UNREDUCED.search(failure.message):
        return
    names: tuple[str, ...] = ()
    listed, numbers = _NAMES.search(failure.message), _INDICES.search(failure.message)
    trainable = evidence.crash.trainable if evidence.crash is not None else ()
    if listed is not None:
        names = tuple(name.strip() for name in listed["names"].split(",") if name.strip())
    elif numbers is not None:
        names = tuple(
            trainable[i] for i in map(int, numbers["indices"].split()) if i < len(trainable)
        )
    what = (
        f"Without a gradient in the step before: {', '.join(names[:4])}"
        f"{f' and {len(names) - 4} more' if len(names) > 4 else ''}. "
        if names
        else ""
    )
    claim = failure_claim(
        rule,
        evidence,
        title=f"{count(len(names), 'parameter')} took no part in the loss, and DDP waits for "
        f"{'it' if len(names) == 1 else 'them'}"
        if names
        else "parameters took no part in the loss, and DDP waits for them",
        explanation=f"{what}DistributedDataParallel reduces a gradient when it is there; one that never "
        "comes leaves the step unfinished.",
        specificity=Specificity.SPECIAL,
        fixes=[
            Fix(
                title="leave unused layers out of the model, or use their output in the loss",
                confidence="likely",
            ),
            Fix(
                title="where the unused ones change from step to step: "
                "DistributedDataParallel(model, find_unused_parameters=True)",
                confidence="likely",
            ),
        ],
        extra=[("without gradient", ", ".join(names))] if names else [],
    )
    culprit = replace(
        claim.finding.culprit, location=evidence.model_site or claim.finding.culprit.location
    )
    if names:
        culprit = replace(culprit, kind="parameter", parameter=names[0])
    yield replace(
        claim,
        finding=replace(
            claim.finding, culprit=culprit, confidence=confidence(0.7, 0.5 if names else 0.0)
        ),
    )


RULES = (
    Rule(
        code="ND801",
        name="rank-local-failure",
        severity="critical",
        summary="some ranks failed by themselves, the others did not",
        check=_rank_local_failure,
        doc=LOCAL_DOC,
    ),
    Rule(
        code="ND802",
        name="diverged-replicas",
        severity="critical",
        summary="ranks that should hold the same parameters do not",
        check=_diverged_replicas,
        doc=DIVERGED_DOC,
    ),
    Rule(
        code="ND803",
        name="unused-in-ddp",
        severity="critical",
        summary="parameters without a gradient, for which DDP waits",
        check=_unused_in_ddp,
        doc=UNUSED_DOC,
    ),
    Rule(
        code="ND804",
        name="desynchronised-ranks",
        severity="critical",
        summary="ranks that wait for one another for ever",
        check=_desynchronised_ranks,
        doc=DESYNCHRONISED_DOC,
    ),
    Rule(
        code="ND806",
        name="same-batches",
        severity="warning",
        summary="every rank trains on the same batches",
        check=_same_batches,
        doc=SAME_BATCHES_DOC,
    ),
)
