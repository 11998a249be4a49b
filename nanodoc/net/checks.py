"""The checks that a rank goes through, in order. Each gives None, or what is wrong with the numbers
that came back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from nanodoc import accelerator, cuda
from nanodoc.instrument.torch_private import Store
from nanodoc.net.drill import Drill
from nanodoc.net.links import try_links
from nanodoc.net.record import RankFacts

_ELEMENTS = 1024
_DEVICE_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What a check needs to know: who this is, who the others are, and on what device."""

    rank: int
    world_size: int
    backend: str
    device: torch.device
    everyone: Mapping[int, RankFacts]
    store: Store  # of the process group
    timeout: float
    drills: tuple[Drill, ...]  # of this rank

    def sent(self, check: str, rank: int) -> torch.Tensor:
        """What `rank` contributes: different at every element and on every rank, and exact in
        float32."""
        values = torch.arange(_ELEMENTS, dtype=torch.float32, device=self.device) + rank
        return (
            values + 1000
            if rank == self.rank and any(drill.falsifies(check) for drill in self.drills)
            else values
        )

    def synchronize(self) -> None:
        """Collectives on a GPU only queue work: a check has ended when the device is through with
        it."""
        accelerator.synchronize(self.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check; `together` says that no rank leaves it before all have entered."""

    name: str
    run: Callable[[Place], str | None]
    together: bool = True


def _device(place: Place) -> str | None:
    """Allocates, fills and sums; and multiplies matrices whose product is known."""
    if place.backend == "nccl" and place.device.type != "cuda":
        raise RuntimeError(
            "NCCL needs a GPU, but torch finds none here; run nanodoc env to see why"
        )
    ones = torch.ones(_DEVICE_BYTES // 4, dtype=torch.float32, device=place.device)
    total = float(ones.sum())  # exact: whole numbers up to 2**24
    if total != _DEVICE_BYTES // 4:
        return f"the sum of {_DEVICE_BYTES // 4} ones on {place.device} is wrong: {total:g}"
    square = torch.full((64, 64), 2.0, device=place.device)
    product = float((square @ square)[0, 0])
    return (
        None
        if product == 256.0
        else f"a matrix product on {place.device} gives {product:g} instead of 256"
    )


def _links(place: Place) -> str | None:
    return try_links(place.rank, place.everyone, place.timeout / 2)


def _connect(place: Place) -> str | None:
    device, patience = None, place.timeout + 5
    if place.backend == "nccl":
        cuda.set_device(place.device.index or 0)
        device = place.device  # connects now, not at the first collective
        # at its own timeout NCCL's watchdog kills the process, which couldn't report any more
        patience = 10 * place.timeout + 60
    dist.init_process_group(
        place.backend,
        store=place.store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=patience),
        device_id=device,
    )
    return None


def _barrier(place: Place) -> str | None:
    dist.barrier(device_ids=[place.device.index or 0] if place.backend == "nccl" else None)
    place.synchronize()
    return None


def _all_reduce(place: Place) -> str | None:
    values = place.sent("all_reduce", place.rank)
    dist.all_reduce(values)
    return _compared(
        values, sum(place.sent("", rank) for rank in range(place.world_size)), "the sum"
    )


def _broadcast(place: Place) -> str | None:
    """From the first rank and from the last: they are rarely on the same host."""
    for root in sorted({0, place.world_size - 1}):
        values = (
            place.sent("broadcast", root)
            if place.rank == root
            else torch.zeros(_ELEMENTS, device=place.device)
        )
        dist.broadcast(values, src=root)
        wrong = _compared(values, place.sent("", root), f"what rank {root} sent")
        if wrong:
            return wrong
    return None


def _all_gather(place: Place) -> str | None:
    parts = [torch.zeros(_ELEMENTS, device=place.device) for _ in range(place.world_size)]
    dist.all_gather(parts, place.sent("all_gather", place.rank))
    compared = [
        _compared(part, place.sent("", rank), f"what rank {rank} sent")
        for rank, part in enumerate(parts)
    ]
    return "; ".join(filter(None, compared)) or None


def _reduce_scatter(place: Place) -> str | None:
    own = torch.zeros(_ELEMENTS, device=place.device)
    dist.reduce_scatter(
        own,
        [place.sent("reduce_scatter", place.rank) * (part + 1) for part in range(place.world_size)],
    )
    return _compared(
        own,
        sum(place.sent("", rank) * (place.rank + 1) for rank in range(place.world_size)),
        "the sum of its part",
    )


def _ring(place: Place) -> str | None:
    """Every rank sends to the next one: a bad link is the one whose receiver hears nothing."""
    if place.world_size == 1:
        return None
    before, after = (place.rank - 1) % place.world_size, (place.rank + 1) % place.world_size
    heard = torch.zeros(_ELEMENTS, device=place.device)
    sent = place.sent("ring", place.rank)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, heard, before), dist.P2POp(dist.isend, sent, after)]
    ):
        work.wait()
    return _compared(heard, place.sent("", before), f"what rank {before} sent")


def _disconnect(place: Place) -> str | None:
    # nobody leaves while others still talk
    dist.barrier(device_ids=[place.device.index or 0] if place.backend == "nccl" else None)
    dist.destroy_process_group()
    return None


def _compared(got: torch.Tensor, wanted: torch.Tensor | int, what: str) -> str | None:
    different = (got != wanted).nonzero()
    if not len(different):
        return None
    at = int(different[0])
    expected = float(wanted[at]) if isinstance(wanted, torch.Tensor) else float(wanted)
    return (
        f"{what} is wrong: {float(got[at]):g} instead of {expected:g} ({len(different)} of "
        f"{got.numel()} elements differ)"
    )


BEFORE_SPEED = (
    Check(name="device", run=_device, together=False),
    Check(name="links", run=_links, together=False),
    Check(name="connect", run=_connect),
    Check(name="barrier", run=_barrier),
    Check(name="all_reduce", run=_all_reduce),
    Check(name="broadcast", run=_broadcast),
    Check(name="all_gather", run=_all_gather),
    Check(name="reduce_scatter", run=_reduce_scatter),
    Check(name="ring", run=_ring),
)
LAST = Check(name="disconnect", run=_disconnect)
