"""What is concluded from the ranks' records, without starting any: several hosts, GPUs and frozen
ranks can be played here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nanodoc.errors import UsageError
from nanodoc.net.compare import compared
from nanodoc.net.drill import read_drill
from nanodoc.net.interfaces import fits, interfaces
from nanodoc.net.judge import ALIVE, GONE, MISSING, SILENT, Seen, Setting, judge
from nanodoc.net.launch import first_host, read_launch
from nanodoc.net.links import Door, peers_of, try_links
from nanodoc.net.nccl_log import discard, enable, important, meaning
from nanodoc.net.record import NO_ANSWER, RAISED, CheckDone, Failure, RankFacts, RankRecord, Speed
from nanodoc.report.net import guide, render

CHECKS = (
    "device",
    "links",
    "connect",
    "barrier",
    "all_reduce",
    "ring",
    "latency",
    "bandwidth 16 MiB",
    "disconnect",
)
SETTING = Setting(checks=CHECKS, backend="nccl", timeout=10.0, address="node-a:29500")


def facts(rank: int, **changes: object) -> RankFacts:
    host = "node-a" if rank < 2 else "node-b"
    base = RankFacts(
        rank=rank,
        host=host,
        pid=4000 + rank,
        machine=host,
        nanodoc="0.1.0",
        torch="2.13.0+cu126",
        python="3.11.7",
        cuda="12.6",
        nccl="2.27.3",
        device=f"cuda:{rank % 2}",
        device_name="GPU",
        device_id=f"GPU-{rank}",
        address=f"10.0.0.{1 + rank // 2}",
        interface="eth0",
        network="10.0.0.0/24",
        resolves_to=f"10.0.0.{1 + rank // 2}",
        port=40000 + rank,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def through(rank: int, *checks: str, late: float = 0.001) -> RankRecord:
    return RankRecord(
        facts=facts(rank),
        done=tuple(CheckDone(name=name, seconds=0.002 * (rank + 1), late=late) for name in checks),
    )


def healthy(rank: int) -> RankRecord:
    speeds = (Speed(size=8, seconds=4e-5), Speed(size=16 * 2**20, seconds=0.01))
    return replace(through(rank, *CHECKS), finished=True, speeds=speeds)


def stuck(
    rank: int,
    check: str,
    *,
    entered: bool = True,
    kind: str = NO_ANSWER,
    text: str = "no answer within 10 s",
) -> RankRecord:
    record = through(rank, *CHECKS[: CHECKS.index(check)])
    return replace(
        record,
        current=check,
        entered=entered,
        stopped=True,
        failures=(Failure(check=check, kind=kind, text=text, entered=entered),),
    )


def alive(*records: RankRecord) -> dict[int, Seen]:
    return {record.facts.rank: Seen(state=ALIVE, record=record) for record in records}


def test_the_report_of_two_hosts(golden: Callable[[str, str], None]) -> None:
    golden(
        "net_healthy",
        render(replace(judge(alive(*map(healthy, range(4))), SETTING), nanodoc="0.1.0")),
    )


def test_the_report_of_a_rank_that_died(golden: Callable[[str, str], None]) -> None:
    seen = alive(*(stuck(rank, "all_reduce") for rank in range(4)))
    dead = replace(through(2, *CHECKS[:4]), current="all_reduce", entered=True)
    golden(
        "net_failed",
        render(
            replace(judge({**seen, 2: Seen(state=GONE, record=dead)}, SETTING), nanodoc="0.1.0")
        ),
    )


def test_a_frozen_rank_is_named_and_the_others_waited() -> None:
    seen = alive(*(stuck(rank, "ring") for rank in range(3)))
    seen[3] = Seen(
        state=SILENT,
        record=replace(through(3, *CHECKS[:5]), current="ring", entered=True),
        silent_for=12.0,
    )
    report = judge(seen, SETTING)
    assert [one.state for one in report.ranks] == ["waited", "waited", "waited", "FAILED"]
    assert "no sign of life for 12 s in ring" in report.ranks[3].text


def test_when_all_entered_and_none_answers_nobody_is_called_guilty() -> None:
    report = judge(alive(*(stuck(rank, "all_reduce") for rank in range(4))), SETTING)
    assert [one.state for one in report.ranks] == ["FAILED"] * 4
    assert report.ranks[2].text == "in all_reduce: no answer within 10 s (last seen: barrier OK)"
    assert "NCCL_IB_DISABLE" in (report.problems[0].help or "")


def test_a_bad_link_of_the_ring_is_named_by_its_ends() -> None:
    seen = alive(healthy(0), healthy(1), stuck(2, "ring"), healthy(3))
    report = judge(seen, SETTING)
    assert (
        report.ranks[2].text
        == "in ring: received nothing from rank 1 within the timeout (last seen: all_reduce OK)"
    )


def test_an_error_of_one_ranks_own_makes_the_others_wait_for_it() -> None:
    out_of_memory = stuck(1, "device", kind=RAISED, text="OutOfMemoryError: CUDA out of memory")
    report = judge(alive(stuck(0, "connect"), out_of_memory, stuck(2, "connect")), SETTING)
    assert [one.state for one in report.ranks] == ["waited", "FAILED", "waited"]
    assert report.ranks[1].text.startswith("in device: OutOfMemoryError")


def test_a_missing_rank_is_named_with_who_was_there() -> None:
    waiting = [RankRecord(facts=facts(rank)) for rank in (0, 1, 3)]
    report = judge({**alive(*waiting), 2: Seen(state=MISSING)}, replace(SETTING, backend=None))
    (missing,) = [one for one in report.problems if one.state == "FAILED"]
    assert (
        "rank 2 of 4 never arrived at node-a:29500 within 10 s; arrived: ranks 0–1 on node-a; "
        "rank 3 on node-b"
    ) in missing.text
    assert not report.healthy


@pytest.mark.parametrize(("seconds", "named"), [(0.19, False), (0.21, True)])
def test_slow_means_over_a_fifth_of_a_second_and_three_medians(seconds: float, named: bool) -> None:
    records = [
        replace(
            healthy(rank),
            done=(CheckDone(name="ring", seconds=0.1, late=seconds if rank == 3 else 0.001),),
        )
        for rank in range(4)
    ]
    assert (
        any(
            "rank 3 (node-b) is slow" in one.text
            for one in judge(alive(*records), SETTING).problems
        )
        is named
    )
    all_slow = [
        replace(record, done=(replace(record.done[0], late=seconds),)) for record in records
    ]
    assert judge(alive(*all_slow), SETTING).problems == ()


PROBLEMS = {
    "torch": (
        {"torch": "2.12.0"},
        "FAILED",
        "rank 3 (node-b) runs torch 2.12.0; the others run 2.13.0+cu126",
    ),
    "nccl": ({"nccl": "2.21.5"}, "FAILED", "rank 3 (node-b) runs NCCL 2.21.5"),
    "python": ({"python": "3.12.1"}, "note", "rank 3 (node-b) runs Python 3.12.1"),
    "one GPU": ({"device_id": "GPU-2"}, "FAILED", "ranks 2–3 share one GPU"),
    "no GPU": ({"device_id": None, "device": "cpu"}, "note", "rank 3 (node-b) found no GPU"),
    "GPU fails": (
        {"device_error": "driver too old"},
        "FAILED",
        "rank 3 (node-b) can't use its GPU: driver too old",
    ),
    "interface": (
        {"asked_interfaces": {"NCCL_SOCKET_IFNAME": "ib"}, "interfaces": ("lo", "eth0")},
        "FAILED",
        "NCCL_SOCKET_IFNAME=ib matches no interface of node-b (it has lo, eth0)",
    ),
    "network": (
        {"network": "192.168.7.0/24", "interface": "wlan0"},
        "note",
        "rank 3 on 192.168.7.0/24 (wlan0 on node-b)",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_differs_is_named(name: str) -> None:
    changes, state, text = PROBLEMS[name]
    four = [facts(0), facts(1), facts(2), facts(3, **changes)]
    (problem,) = compared(four, "nccl", {})
    assert problem.state == state
    assert text in problem.text
    assert compared([*four[:3], facts(3)], "nccl", {}) == ()


def test_loopback_matters_between_hosts_only() -> None:
    lost = [
        facts(rank, address="127.0.1.1", resolves_to="127.0.1.1", network="127.0.0.0/8")
        for rank in range(4)
    ]
    assert [one.state for one in compared(lost, "gloo", {})] == ["FAILED", "FAILED"]
    assert compared([replace(one, host="node-a") for one in lost], "gloo", {}) == ()
    (note, _) = compared([facts(rank, resolves_to="127.0.1.1") for rank in range(4)], "gloo", {})
    assert note.state == "note"
    assert "export GLOO_SOCKET_IFNAME=eth0" in (note.help or "")


@pytest.mark.parametrize(
    ("variable", "value", "fitting"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", ["eth0", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "=eth0", ["eth0"]),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", ["eth0", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "^=eth1", ["lo", "eth0", "docker0"]),
        ("GLOO_SOCKET_IFNAME", "eth1,eth0", ["eth0", "eth1"]),
        ("GLOO_SOCKET_IFNAME", "eth", []),
    ],
)
def test_which_interfaces_a_variable_lets_be_used(
    variable: str, value: str, fitting: list[str]
) -> None:
    assert [
        name for name in ("lo", "eth0", "eth1", "docker0") if fits(variable, value, name)
    ] == fitting


def test_the_interfaces_of_this_host() -> None:
    there = {one.name: one for one in interfaces()}
    assert there["lo"].address == "127.0.0.1"
    assert there["lo"].network == "127.0.0.0/8"


def test_clocks_apart_are_named_once_for_each_host() -> None:
    (problem,) = compared([facts(rank) for rank in range(4)], "nccl", {2: -61.0, 3: -61.0, 1: 0.4})
    assert problem.text == "the clock on node-b differs from the first rank's by -61 s"


def test_records_survive_the_store_and_other_versions() -> None:
    record = replace(stuck(1, "ring"), speeds=(Speed(size=8, seconds=0.1),), log=("line",))
    assert RankRecord.from_json(record.to_json()) == record
    assert RankRecord.from_json(
        '{"facts": {"rank": 3, "planet": "mars"}, "mood": 1}'
    ) == RankRecord(facts=RankFacts(rank=3))


def test_links_tell_who_answers() -> None:
    doors = [Door(), Door()]
    try:
        two = [facts(rank, address="127.0.0.1", port=door.port) for rank, door in enumerate(doors)]
        for one, door in zip(two, doors, strict=True):
            door.open(one)
        assert try_links(0, dict(enumerate(two)), 5.0) is None
        # as where a bridge has the same address on every host
        swapped = replace(two[1], port=two[0].port)
        said = try_links(0, {0: two[0], 1: swapped}, 5.0) or ""
        assert said.startswith("a different process answers at the address of rank 1")
        assert ": nanodoc rank 0" in said
    finally:
        for door in doors:
            door.close()


def test_every_host_is_tried_from_several_ranks() -> None:
    assert peers_of(1, 3) == [0, 2]
    assert peers_of(60, 64) == [61, 62, 0, 4, 12, 28]


def test_nccls_lines_are_explained_once_for_each_kind() -> None:
    lines = [
        "node-a:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>",
        "node-a:1:1 [0] NCCL INFO NET/IB : No device found.",
        "node-a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "node-a:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "node-a:1:1 [0] NCCL INFO something else",
        "node-a:1:1 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to "
        "10.0.0.2<37777> failed",
    ]
    kept = important(lines)
    assert kept == (lines[5], lines[0], lines[1], lines[2])
    assert "InfiniBand" in (meaning(kept[2]) or "")


def test_nccls_log_goes_to_a_file_of_ours_which_is_taken_away() -> None:
    environment = {"NCCL_DEBUG": "WARN"}
    log = enable(environment)
    assert environment["NCCL_DEBUG"] == "WARN"  # what was set before is kept
    file = Path(environment["NCCL_DEBUG_FILE"])
    file.write_text("node-a:1:1 [0] NCCL INFO NCCL version 2.27.3+cuda12.6\n")
    assert log() == ("node-a:1:1 [0] NCCL INFO NCCL version 2.27.3+cuda12.6",)
    discard(environment)
    assert not file.exists()
    own = {"NCCL_DEBUG_FILE": "mine.log"}
    Path("mine.log").write_text("NCCL version 1\n")
    assert enable(own)() == ()  # the user reads it there
    discard(own)
    assert Path("mine.log").exists()


def test_slurm_and_torchrun_name_the_rank() -> None:
    slurm = {
        "SLURM_PROCID": "9",
        "SLURM_STEP_NUM_TASKS": "16",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NODELIST": "gpu[03-04]",
        "SLURM_JOB_ID": "123456",
    }
    launch = read_launch(slurm)
    assert launch is not None
    assert (launch.rank, launch.world_size, launch.local_rank, launch.address, launch.port) == (
        9,
        16,
        1,
        "gpu03",
        18456,
    )
    # the batch script itself
    assert read_launch({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}) is None
    assert read_launch({}) is None
    assert [
        first_host(text) for text in ("n1,n2", "gpu[03-07,12],x", "a[1,3]-ib", "single", "")
    ] == ["n1", "gpu03", "a1-ib", "single", ""]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "ranks go from 0"),
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "99999"},
            "MASTER_PORT is 99999",
        ),
    ],
)
def test_variables_that_make_no_sense(variables: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_launch(variables)


@pytest.mark.parametrize(
    "text", ["1", "x:die", "1:explode", "1:die@lunch", "1:version@ring", "1:wrong@barrier", "2:die"]
)
def test_drills_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match="--drill"):
        read_drill(text, 2)


def test_the_guide_names_host_and_port() -> None:
    text = guide("node-a", 29501)
    assert "--rdzv-endpoint node-a:29501" in text
    assert "scontrol show hostnames" in text
    assert "NCCL_DEBUG=INFO" in text
