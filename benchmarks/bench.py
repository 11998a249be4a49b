"""Measures what nanodoc costs: ratios to the bare loop, in one run, with interleaved repetitions.

usage: scripts/bench [--repeats N] [--seconds S] [--models gpt,conv,lstm,gpt-amp] [--no-memory]
    [--no-scripts] [--no-start-up] [--long-steps N]
    [--device auto|cpu|cuda|mps|xpu|…|sim] [--output bench.json] [--max-monitored R]

Prints a table and writes JSON with the device's name. Times are the median over `repeats` rounds;
in each round every way of running takes its turn, in a new order, so that a slow phase of the
machine hits all of them. Peak memory is taken in a process of its own, what the model and its steps
add to it (CPU: the kernel's high-water mark of resident memory, on Linux; an accelerator: its
allocator's peak).

`--device sim` is the simulated accelerator of the tests. Its times mean little; it counts how often
each way makes the host wait, and those counts hold on every accelerator.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks import printing
from benchmarks.arguments import Arguments, parse
from benchmarks.devices import SIMULATED, devices_for, shown
from benchmarks.growth import graph_growth, growth
from benchmarks.long_run import long_run
from benchmarks.memory import peak_memory
from benchmarks.merging import merging
from benchmarks.models import SMALL
from benchmarks.recipes import LARGE
from benchmarks.scripts import ALONE, script
from benchmarks.sharded import sharded
from benchmarks.start_up import start_up
from benchmarks.timing import timed
from benchmarks.waits import waits


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse((__doc__ or "").partition("\n")[0], arguments)
    devices: dict[str, Any] = {}
    results: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "devices": devices,
    }
    for device in devices_for(given.device):
        devices[device.type] = _measured(device, given)
    if given.start_up:
        results["start_up"] = start_up()
        printing.print_start_up(results["start_up"])
        results["merging"] = merging()
        printing.print_merging(results["merging"])
        results["sharded"] = sharded()
        printing.print_sharded(results["sharded"])
    given.output.write_text(json.dumps(results, indent=2), encoding="utf-8")
    print(f"written to {given.output}")
    worst = _worst(devices)
    if given.max_monitored is not None and worst > given.max_monitored:
        sys.exit(
            f"a monitored step costs {worst:.3f} times the bare one; "
            f"the limit is {given.max_monitored}"
        )


def _measured(device: torch.device, given: Arguments) -> dict[str, Any]:
    name = shown(device)
    print(
        f"{name}, torch {torch.__version__}; ratios to the bare loop "
        f"(median of {given.repeats} rounds of {given.seconds} s)"
    )
    models = {model: _of_model(model, device, given) for model in given.models}
    per_op = growth(device)
    printing.print_growth(per_op)
    graph = graph_growth(device)
    printing.print_graph(graph)
    found: dict[str, Any] = {
        "name": name,
        "models": models,
        "microseconds_per_traced_op": per_op,
        "graph": graph,
    }
    if given.long_steps:
        found["long_run"] = long_run(given.long_steps, device)
        printing.print_long_run(found["long_run"])
    return found


def _of_model(name: str, device: torch.device, given: Arguments) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if name in ALONE:
        print(f"  {name}", flush=True)
        return row | _of_script(name, device, given)
    if given.memory:
        row["peak_memory"] = peak_memory(name, device)
    if name != LARGE:
        row |= timed(name, device, given.repeats, given.seconds)
        printing.print_model(name, row)
    else:
        print(f"  {name}", flush=True)
    if device.type == SIMULATED:
        row["waits"] = waits(name, device)
        printing.print_waits(row["waits"])
    if given.memory:
        printing.print_memory(row["peak_memory"])
    return row | _of_script(name, device, given)


def _of_script(name: str, device: torch.device, given: Arguments) -> dict[str, Any]:
    if not given.scripts or device.type == SIMULATED or (name in ALONE and device.type != "cpu"):
        return {}
    # where its memory lies makes a process slower or faster than another by a few percent
    pairs = 5 if name in (*SMALL, *ALONE) else 3
    row = script(name, min(given.repeats, pairs), device=device.type)
    printing.print_script(row)
    return {"script": row}


def _worst(devices: dict[str, Any]) -> float:
    """The dearest monitored step, over the bare one."""
    worst = 0.0
    for table in devices.values():
        for row in table["models"].values():
            ratios = row.get("ratios", {"monitored": 0.0})
            worst = max(worst, ratios["monitored"], ratios.get("monitored own step", 0.0))
    return worst
