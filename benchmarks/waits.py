"""How often the host waits for the device, counted by the simulated accelerator; the counts hold on
every accelerator."""

from __future__ import annotations

import torch

from benchmarks.devices import simulated
from benchmarks.ways import Ways


def waits(name: str, device: torch.device, steps: int = 8) -> dict[str, dict[str, float]]:
    """How often a step of each way makes the host wait for the simulated device, by what for.

    Means over some steps, without looks at sampled steps and copies of the weights, which come now
    and then.
    """
    sim = simulated()
    ways, found = Ways(name, device, now_and_then=False), {}
    for way, run in ways.ways.items():
        with ways.around(way):
            for _ in range(4):
                run()
            before = sim.counts()
            for _ in range(steps):
                run()
            since = sim.counts().since(before)
        found[way] = {
            "copies to the host": since.copies_to_host / steps,
            "reads of one element": since.scalar_reads / steps,
            "others": since.synchronisations / steps,
        }
    ways.close()
    return found
