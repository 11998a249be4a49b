"""What the reports of many ranks cost to merge: their files are written as ranks write them, and
gathered by groups as ranks do."""

from __future__ import annotations

import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Culprit, Finding
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import ENDED, SICK, RankOutcome
from nanodoc.pipeline.diagnose import diagnose
from nanodoc.report.merge import merge
from nanodoc.report.report import Report, RunInfo, VitalSigns
from nanodoc.rules.catalogue import superseded
from nanodoc.supervise.gathering import GROUP
from nanodoc.supervise.rendezvous import Ranks

_PARAMETERS = 300
_STEPS = 2_000
SICK_RANK = 17


def merging(sizes: Iterable[int] = (64, 256, 1024)) -> dict[str, dict[str, float]]:
    """Seconds, and the MiB that Python holds at its peak, for runs of so many ranks: from the
    moment that all have told how they ended until the report of all is there."""
    found = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            _, seconds, peak = merged(size, Path(folder))
        found[str(size)] = {"seconds": seconds, "mib": peak / 2**20}
    return found


def merged(size: int, folder: Path) -> tuple[Report, float, int]:
    """(the report of all, seconds, bytes at the peak): one rank is sick, the others waited."""
    ranks = [Ranks(number, size, folder, "many") for number in range(size)]
    for one in ranks:
        outcome, report = told(one.mine, size)
        if one.mine % GROUP:
            one.tell(outcome, report)
    leaders = [one for one in ranks if one.mine % GROUP == 0]
    found: list[list[tuple[RankOutcome, Report | None]]] = []

    def settled(leader: Ranks) -> None:
        pairs = leader.settle(*told(leader.mine, size))
        if pairs is not None:
            found.append(pairs)
            leader.printed()

    tracemalloc.start()
    began = time.perf_counter()
    threads = [threading.Thread(target=settled, args=(one,), daemon=True) for one in leaders]
    for thread in threads:
        thread.start()
    while not found and any(thread.is_alive() for thread in threads):
        time.sleep(0.01)
    (pairs,) = found
    outcomes = tuple(outcome for outcome, _ in pairs)
    across = diagnose(Evidence(ranks=outcomes), Config())
    report = merge(pairs, across, superseded(across))
    seconds, (_, peak) = time.perf_counter() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for thread in threads:
        thread.join()
    return report, seconds, peak


def told(rank: int, size: int) -> tuple[RankOutcome, Report]:
    """What a rank says at its end."""
    sick = rank == SICK_RANK
    finding = Finding(
        code="ND101",
        name="nonfinite-input",
        severity="critical",
        confidence=0.9,
        title="batch[0] holds 1 NaN",
        explanation="batch[0] contains 1 NaN.",
        culprit=Culprit(kind="data"),
        phase="data",
        step=_STEPS - 1,
        rank=rank,
    )
    run = RunInfo(
        entrypoint="train.py",
        command="run",
        config={},
        device="cpu",
        amp=None,
        seed=None,
        steps_requested=_STEPS,
        steps_run=_STEPS,
        torch="",
        python="",
        rank=rank,
        world_size=size,
    )
    values = tuple(1.0 / (step + rank + 1) for step in range(_STEPS))
    outcome = RankOutcome(
        rank=rank,
        host=f"host{rank // 8}",
        ended=SICK if sick else ENDED,
        steps=_STEPS - 1,
        step=_STEPS - 1,
        phase="forward" if sick else "backward",
        why=finding.title if sick else f"waited for rank {SICK_RANK}",
        waits=not sick,
        fingerprints=tuple((f"layers.{n}.weight", f"{n:016x}") for n in range(_PARAMETERS)),
        wrapped=True,
    )
    vitals = VitalSigns(steps=_STEPS, losses=values, grad_norms=values)
    report = Report(
        nanodoc="", run=run, findings=(finding,) if sick else (), vitals=vitals, broke=sick
    )
    return outcome, report
