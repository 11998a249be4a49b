"""What one rank of a distributed run tells of itself, for the report that is made of all."""

from __future__ import annotations

import os
import socket

from torch.nn.parallel import DistributedDataParallel

from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import CLEAN, FAILED, SICK, WELL, RankFacts
from nanodoc.loop.outcome import Outcome
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.local_collectives import batch_digests, fingerprints, replicated, several_ranks


def before_the_run(recipe: Recipe) -> tuple[tuple[str, str], ...]:
    """Digests of parameters that nothing keeps alike, so that it can be told whether they ever
    were."""
    if not several_ranks():
        return ()
    parameters, wrapped = replicated(recipe.model)
    return fingerprints(parameters) if not wrapped else ()


def rank_facts(
    recipe: Recipe, outcome: Outcome, evidence: Evidence, before: tuple[tuple[str, str], ...]
) -> RankFacts | None:
    """None where there is one rank only."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    trip, grouped = evidence.trip, several_ranks()
    own = WELL
    if evidence.failure is not None:
        own = FAILED
    elif trip is not None:
        # run again by itself, the step was healthy: what tripped it came from the others
        finite = trip.loss is not None and trip.loss - trip.loss == 0
        own = (
            CLEAN
            if grouped
            and finite
            and evidence.reproduced == "no"
            and not (evidence.births or evidence.leaves)
            else SICK
        )
    well = own == WELL and not outcome.interrupted
    parameters, wrapped = (
        replicated(recipe.model)
        if grouped
        else ([], any(isinstance(m, DistributedDataParallel) for m in recipe.model.modules()))
    )
    return RankFacts(
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        host=socket.gethostname(),
        grouped=grouped,
        wrapped=wrapped,
        own=own,
        before=before,
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
        loss=outcome.losses[-1] if outcome.losses else None,
        fingerprints=fingerprints(parameters) if well else (),
        batches=batch_digests(outcome.checkpoints) if outcome.checkpoints is not None else (),
        data_site=evidence.data_site,
    )
