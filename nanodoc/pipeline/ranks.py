"""What one rank of a distributed run tells of itself, for the report that is made of all."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure_kinds import peer_left
from nanodoc.facts.ops import all_received
from nanodoc.facts.ranks import CLEAN, FAILED, SICK, WELL, RankAtStart, RankFacts, RankOutcome
from nanodoc.loop.outcome import Outcome
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.local_collectives import batch_digests, fingerprints, replicated, several_ranks
from nanodoc.replay.parts import held_part, whole_size
from nanodoc.report.report import Report

_NOT_ALONE = ("not_run", "as_it_ran")


def before_the_run(recipe: Recipe, started: Mapping[int, str] | None = None) -> RankAtStart | None:
    """This rank's place, with digests of what several ranks may be meant to hold alike, so that it
    can be told whether they ever did; None where there is one rank only, or no process group.
    `started` are those before the first step, by the parameters' identity, where that is over."""
    if not several_ranks():
        return None
    parameters, _ = replicated(recipe.model)
    return RankAtStart(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        digests=fingerprints(parameters, started),
    )


def rank_facts(
    recipe: Recipe, outcome: Outcome, evidence: Evidence, before: RankAtStart | None
) -> RankFacts | None:
    """None where there is one rank only. A training may have left its group when it ended."""
    trip, there = evidence.trip, several_ranks()
    grouped = there or before is not None
    # processes that the training started itself are in no launcher's environment
    size = before.world_size if before else int(os.environ.get("WORLD_SIZE", "1"))
    if size < 2:
        return None
    own = own_end(evidence, grouped=grouped)
    well = own == WELL and not outcome.interrupted
    wrapped = any(isinstance(m, DistributedDataParallel) for m in recipe.model.modules())
    sharded, last = held_part(recipe.model) is not None, evidence.at_group_end
    return RankFacts(
        rank=before.rank if before else int(os.environ["RANK"]),
        world_size=size,
        host=socket.gethostname(),
        grouped=grouped,
        wrapped=wrapped,
        own=own,
        ran_alone=evidence.reproduced not in _NOT_ALONE,
        peer=evidence.failure is not None and peer_left(evidence.failure),
        before=before.digests if before else (),
        step=trip.step
        if trip is not None
        else evidence.failure_step
        if evidence.failure is not None
        else None,
        phase=trip.phase
        if trip is not None
        else evidence.failure.phase
        if evidence.failure is not None
        else "",
        sharded=sharded,
        whole_size=whole_size(recipe.model) if sharded else 0,
        loss=outcome.losses[-1] if outcome.losses else None,
        fingerprints=last.fingerprints if well and last is not None else (),
        batches=batch_digests(outcome.checkpoints) if outcome.checkpoints is not None else (),
        data_site=evidence.data_site,
        saved=evidence.saved,
        loaded=evidence.loaded,
        gradients=evidence.rank_gradients,
        running=last.running if well and last is not None else (),
        collectives=evidence.collectives,
        course=evidence.rank_course if well else None,
    )


def own_end(evidence: Evidence, *, grouped: bool) -> str:
    """WELL, SICK, CLEAN or FAILED. `grouped`: the rank is, or was, in a group with others."""
    if evidence.failure is not None:
        return FAILED
    trip = evidence.trip
    if trip is None:
        return WELL
    # run again by itself, the step was healthy: what tripped it came from the others; where it
    # can't be run again, its loss was
    finite = trip.loss is not None and trip.loss - trip.loss == 0
    alone = finite and evidence.reproduced in ("no", *_NOT_ALONE)
    unborn = alone and not (evidence.births or evidence.leaves)
    return CLEAN if grouped and (unborn or all_received(evidence.births, evidence.leaves)) else SICK


def outcome_of_rank(facts: RankFacts, report: Report) -> RankOutcome:
    """How a rank ended that came to its end by itself, and told its report."""
    first = next(iter(report.findings), None)
    losses = report.vitals.losses
    return RankOutcome(
        rank=facts.rank,
        host=facts.host,
        ended=facts.own,
        steps=report.vitals.steps,
        step=facts.step,
        phase=facts.phase,
        peer=facts.peer,
        waits=facts.peer,
        why=first.title
        if first is not None and first.severity == "critical" and facts.own in (SICK, FAILED)
        else "",
        location=first.culprit.location if first is not None else None,
        loss=losses[-1] if losses else None,
        **facts.for_all(),
    )
