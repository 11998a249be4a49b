"""What several ranks do together or not at all: to run a step with its collectives again."""

from __future__ import annotations

import itertools
import time

import torch.distributed as dist

from nanodoc.replay.local_collectives import several_ranks

_PATIENCE = 30.0  # seconds: the others are at their first step, too
_BETWEEN = 0.005  # seconds
_GO, _NO = "go", "no"
_questions = itertools.count()


def all_agree(ready: bool) -> bool:
    """Whether every rank of the training's group is `ready`; each must ask, in the same order. A
    rank that is not ready never waits, and a rank that does not ask in time has said no. The ranks
    meet in the store that their group was made by, so that no collective is added to the
    training's."""
    if not several_ranks():
        return ready
    store = dist.distributed_c10d._get_default_store()
    question = f"nanodoc/{next(_questions)}"
    decision = f"{question}/decision"
    # what is decided first holds for all, whoever decides
    if not ready:
        store.compare_set(decision, "", _NO)
        return False
    store.set(f"{question}/{dist.get_rank()}", _GO)
    everyone = [f"{question}/{rank}" for rank in range(dist.get_world_size())]
    until = time.monotonic() + _PATIENCE
    while not store.check([decision]):
        if store.check(everyone):
            store.compare_set(decision, "", _GO)
        elif time.monotonic() > until:
            store.compare_set(decision, "", _NO)
        else:
            time.sleep(_BETWEEN)
    return bool(store.get(decision) == _GO.encode())
