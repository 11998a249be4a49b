"""From the records of all ranks to a report: who failed, who merely waited, which check it was.
Nothing here imports torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nanodoc.net.compare import compared, named
from nanodoc.net.model import (
    FAILED,
    NOT_REACHED,
    NOTE,
    OK,
    WAITED,
    CheckOutcome,
    NetReport,
    Problem,
    RankOutcome,
)
from nanodoc.net.record import NO_ANSWER, RAISED, WRONG, Failure, RankRecord, Speed
from nanodoc.text import seconds

MISSING, GONE, SILENT, ALIVE = "missing", "gone", "silent", "alive"

# A rank is called slow when it enters a check later than 3 times the median of all ranks, and by
# more than 0.2 s: no scheduler of a machine with a free core for each rank makes a process wait
# that long, and what is slow on every rank is nobody's fault. Before connect a rank allocates on
# its device for the first time: loading CUDA takes a second or two.
_SLOW_TIMES, _SLOW_SECONDS, _SLOW_START_SECONDS = 3.0, 0.2, 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the reporter knows of one rank."""

    state: str  # missing, gone (its process ended), silent (it writes no more) or alive
    record: RankRecord | None = None
    silent_for: float = 0.0
    clock_ahead: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What was asked for."""

    checks: tuple[str, ...]
    backend: str | None
    timeout: float
    address: str
    verbose: bool = False
    remark: str | None = None  # why the reporter is not rank 0, or didn't wait any longer


def judge(seen: Mapping[int, Seen], setting: Setting) -> NetReport:
    """The report of what `seen` says of every rank."""
    culprits = _culprits(seen)
    ranks = tuple(
        _outcome(rank, rank_seen, culprits, len(seen), setting)
        for rank, rank_seen in sorted(seen.items())
    )
    records = [entry.record for entry in seen.values() if entry.record is not None]
    problems = [
        *compared(
            [record.facts for record in records],
            setting.backend,
            {rank: rank_seen.clock_ahead for rank, rank_seen in seen.items()},
        ),
        *_missing(seen, setting),
        *_advice(seen, ranks),
        *_slow_ranks(records),
    ]
    if setting.remark is not None:
        problems.append(Problem(state=NOTE, text=setting.remark))
    return NetReport(
        world_size=len(seen),
        backend=setting.backend,
        timeout=setting.timeout,
        address=setting.address,
        ranks=ranks,
        checks=tuple(_check_outcomes(records, len(seen), setting.checks)),
        problems=tuple(problems),
        speeds=_slowest_speeds(records, len(seen)),
        log=_log(records),
        verbose=setting.verbose,
    )


def _log(records: Sequence[RankRecord]) -> tuple[str, ...]:
    """NCCL's lines of a rank that failed, else of the first rank: one is enough to read."""
    return next(
        (
            record.log
            for record in sorted(records, key=lambda record: not record.failures)
            if record.log
        ),
        (),
    )


def _culprits(seen: Mapping[int, Seen]) -> list[int]:
    """The ranks that others wait for: not there, ended, never come to the check, or stopped by an
    error of their own at an earlier one."""
    absent = [
        rank
        for rank, rank_seen in seen.items()
        if rank_seen.state != ALIVE or rank_seen.record is None or _never_entered(rank_seen.record)
    ]
    if absent:
        return absent
    there = {
        rank: rank_seen.record for rank, rank_seen in seen.items() if rank_seen.record is not None
    }
    furthest = max(len(record.done) for record in there.values())
    behind = [
        rank
        for rank, record in there.items()
        if len(record.done) < furthest
        and any(failure.kind == RAISED for failure in record.failures)
    ]
    if behind:
        return behind
    within = {record.current for record in there.values() if record.entered and not record.finished}
    return [
        rank for rank, record in there.items() if _before_check(record) and record.current in within
    ]


def _before_check(record: RankRecord) -> bool:
    return record.current is not None and not record.entered and not record.settled


def _never_entered(record: RankRecord) -> bool:
    return any(failure.kind == NO_ANSWER and not failure.entered for failure in record.failures)


def _outcome(
    rank: int, rank_seen: Seen, culprits: Sequence[int], world_size: int, setting: Setting
) -> RankOutcome:
    record = rank_seen.record
    if record is None:
        return RankOutcome(
            rank=rank, state=FAILED, text=f"never arrived within {setting.timeout:g} s"
        )
    last = record.done[-1].name if record.done else None
    state, text = _verdict(
        rank_seen, record, [other for other in culprits if other != rank], world_size
    )
    return RankOutcome(rank=rank, state=state, text=text, facts=record.facts, last_seen=last)


def _verdict(
    rank_seen: Seen, record: RankRecord, culprits: Sequence[int], world_size: int
) -> tuple[str, str]:
    last = (
        f" (last seen: {record.done[-1].name} OK)" if record.done else " (last seen: rendezvous OK)"
    )
    if rank_seen.state == GONE:
        return FAILED, f"its process ended {_where(record)}{last}"
    if rank_seen.state == SILENT:
        return FAILED, (
            f"no sign of life for {rank_seen.silent_for:.0f} s {_where(record)}: the process is "
            f"frozen or its network is down{last}"
        )
    ended = next((failure for failure in reversed(record.failures) if failure.kind != WRONG), None)
    if ended is not None:
        return _stopped(ended, record, culprits, last, world_size)
    wrong = [failure for failure in record.failures if failure.kind == WRONG]
    if wrong:
        return FAILED, "; ".join(f"in {failure.check}: {failure.text}" for failure in wrong)
    if record.finished:
        return OK, f"{len(record.done)} checks"
    if _before_check(record) and not culprits:
        return FAILED, f"had not entered {record.current} when the check ended{last}"
    if record.current is None:
        return WAITED, f"for {named(culprits)}" if culprits else "for the others"
    where = "in" if record.entered else "before"
    return (
        WAITED,
        f"{where} {record.current} for {named(culprits) if culprits else 'the others'}{last}",
    )


def _stopped(
    failure: Failure, record: RankRecord, culprits: Sequence[int], last: str, world_size: int
) -> tuple[str, str]:
    """How a rank's checks ended: by its own doing, or because another rank did not answer."""
    if failure.kind == NO_ANSWER and not failure.entered:
        return FAILED, f"never entered {failure.check}: {failure.text}{last}"
    lonely = failure.check not in ("device", "links")
    if culprits and lonely:
        return WAITED, f"in {failure.check} for {named(culprits)}{last}"
    if failure.kind == NO_ANSWER and failure.check == "ring":
        rank = record.facts.rank
        return (
            FAILED,
            (
                f"in ring: received nothing from rank {(rank - 1) % world_size} within the "
                f"timeout{last}"
            ),
        )
    return FAILED, f"in {failure.check}: {failure.text}{last}"


def _where(record: RankRecord) -> str:
    if record.finished:
        return "after the last check"
    return f"in {record.current}" if record.current is not None else "before the first check"


def _missing(seen: Mapping[int, Seen], setting: Setting) -> list[Problem]:
    missing = [rank for rank, rank_seen in seen.items() if rank_seen.state == MISSING]
    if not missing:
        return []
    hosts: dict[str, list[int]] = {}
    for rank, rank_seen in seen.items():
        if rank_seen.record is not None:
            hosts.setdefault(rank_seen.record.facts.host, []).append(rank)
    there = "; ".join(f"{named(ranks)} on {host}" for host, ranks in hosts.items()) or "nobody"
    return [
        Problem(
            state=FAILED,
            text=f"{named(missing)} of {len(seen)} never arrived at {setting.address} within "
            f"{setting.timeout:g} s; arrived: {there}",
            help="check that these ranks were started, that their hosts can reach that address "
            "and port (firewall, network), and that --nnodes and --nproc-per-node agree on "
            "all hosts; --timeout waits longer",
        )
    ]


def _advice(seen: Mapping[int, Seen], ranks: Sequence[RankOutcome]) -> list[Problem]:
    """What to look at, once for each kind of failure."""
    found: dict[str, Problem] = {}
    for rank in ranks:
        record = seen[rank.rank].record
        if rank.state != FAILED or record is None:
            continue
        help = _help(seen[rank.rank].state, record)
        if help is not None:
            found.setdefault(
                help[0],
                Problem(
                    state=FAILED,
                    text=f"rank {rank.rank} ({record.facts.host}) {help[0]}",
                    help=help[1],
                ),
            )
    return list(found.values())


def _help(state: str, record: RankRecord) -> tuple[str, str] | None:
    facts = record.facts
    if state == GONE:
        return (
            "ended without a message",
            f"read its stderr (torchrun --log-dir logs --tee 3), and check dmesg on {facts.host} "
            "for the out-of-memory killer",
        )
    if state == SILENT:
        return "is silent", (
            f"check whether {facts.host} still answers (ping, ssh) and whether process {facts.pid} "
            "is stopped or swapped out"
        )
    if _never_entered(record):
        return (
            "runs but does not reach the check",
            f"run py-spy dump --pid {facts.pid} on {facts.host} to see what it is doing",
        )
    if any(failure.kind == NO_ANSWER for failure in record.failures):
        return (
            "got no answer, although every rank is there",
            "the hosts reach each other, but the data does not arrive: set GLOO_SOCKET_IFNAME and "
            "NCCL_SOCKET_IFNAME to the right interface; with NCCL, try NCCL_IB_DISABLE=1 (no "
            "InfiniBand) and NCCL_P2P_DISABLE=1 (no direct GPU-to-GPU transfer), one at a time",
        )
    return None


def _slow_ranks(records: Sequence[RankRecord]) -> list[Problem]:
    """One note for each rank that kept the others waiting, with the check where it was worst."""
    hosts = {record.facts.rank: record.facts.host for record in records}
    late: dict[str, dict[int, float]] = {}
    for record in records:
        for done in record.done:
            if done.late is not None:
                late.setdefault(done.name, {})[record.facts.rank] = done.late
    worst: dict[int, tuple[float, str, float]] = {}
    for name, times in late.items():
        # the lower one of two, so that of two ranks the late one is not measured by itself
        median = statistics.median_low(times.values())
        for rank, late_by in times.items():
            if late_by > max(
                _SLOW_TIMES * median, _SLOW_START_SECONDS if name == "connect" else _SLOW_SECONDS
            ):
                worst[rank] = max(worst.get(rank, (0.0, "", 0.0)), (late_by, name, median))
    return [
        Problem(
            state=NOTE,
            text=f"rank {rank} ({hosts[rank]}) is slow: it reached {name} after "
            f"{seconds(late_by)}, the median rank after {seconds(median)}",
            help="check what else runs on that host, its clock rate and its disks",
        )
        for rank, (late_by, name, median) in sorted(worst.items())
    ]


def _check_outcomes(
    records: Sequence[RankRecord], world_size: int, names: Iterable[str]
) -> Iterable[CheckOutcome]:
    for name in names:
        times = [done.seconds for record in records for done in record.done if done.name == name]
        failed = any(failure.check == name for record in records for failure in record.failures)
        reached = times or any(record.current == name for record in records)
        state = (
            FAILED
            if failed or (reached and len(times) < world_size)
            else OK
            if times
            else NOT_REACHED
        )
        yield CheckOutcome(
            name=name,
            state=state,
            quickest=min(times, default=None),
            slowest=max(times, default=None),
            ranks_through=len(times),
        )


def _slowest_speeds(records: Sequence[RankRecord], world_size: int) -> tuple[Speed, ...]:
    """For each size the time of the slowest rank, where all have one: a collective is as fast as
    its last rank."""
    times: dict[int, list[float | None]] = {}
    for record in records:
        for speed in record.speeds:
            times.setdefault(speed.size, []).append(speed.seconds)
    full = {
        size: [second for second in seconds if second is not None]
        for size, seconds in times.items()
        if len(seconds) == world_size
    }
    return tuple(
        Speed(size=size, seconds=max(seconds, default=None)) for size, seconds in full.items()
    )


__all__ = ["ALIVE", "GONE", "MISSING", "SILENT", "Seen", "Setting", "judge"]
