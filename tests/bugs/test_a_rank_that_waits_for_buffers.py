"""A rank that stands still where DDP broadcasts buffers waits for another, and is not the one that
hangs."""

from __future__ import annotations

from torch.nn.parallel import distributed

from nanodoc.heartbeat.last_words import waits_for_ranks


def test_ddp_waits_in_its_broadcasts_and_not_in_its_forward() -> None:
    ddp = distributed.DistributedDataParallel
    for function in (ddp._distributed_broadcast_coalesced, ddp._sync_module_buffers):
        assert waits_for_ranks(str(distributed.__file__), function.__name__)
    # it calls the model
    assert not waits_for_ranks(str(distributed.__file__), ddp.forward.__name__)
