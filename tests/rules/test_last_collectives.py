"""ND804 where torch's flight recorder says in which collectives the ranks wait."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace

import pytest

from nanodoc.config import Config
from nanodoc.facts.collectives import LastCollective, collectives_of
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import HUNG, RankOutcome
from nanodoc.heartbeat.flight_recorder import last_collectives
from nanodoc.pipeline.diagnose import diagnose


def entered(
    number: int,
    op: str = "all_reduce",
    *,
    waits: bool = True,
    size: int = 3,
    through: tuple[LastCollective, ...] = (),
) -> LastCollective:
    return LastCollective(
        group="0",
        about="default_pg",
        number=number,
        op=op,
        sizes=((size,),),
        types=("Float",),
        waits=waits,
        entered=number,
        through=through,
    )


def told(*each: LastCollective) -> str:
    """Title and explanation where the ranks hang after these."""
    ranks = tuple(
        RankOutcome(
            rank=rank,
            ended=HUNG,
            steps=4,
            step=4,
            phase="backward",
            waits=one.waits,
            collectives=(one,),
        )
        for rank, one in enumerate(each)
    )
    (finding,) = diagnose(Evidence(ranks=ranks), Config())
    assert finding.code == "ND804"
    return f"{finding.title}. {finding.explanation}"


def test_few_ranks_of_many_that_called_another_op() -> None:
    each = [entered(9) for _ in range(1024)]
    each[17] = entered(9, "all_gather")
    text = told(*each)
    assert text.startswith("rank 17 and ranks 0–1023 but 17 wait in different collectives")
    assert "all_gather of float [3] on rank 17, and all_reduce of float [3] on ranks" in text


def test_other_shapes_of_one_op() -> None:
    assert "all_reduce of float [5] on rank 2" in told(entered(9), entered(9), entered(9, size=5))


def test_ranks_that_got_through_what_one_called_otherwise() -> None:
    past = (entered(8, waits=False), entered(9, waits=False, size=5))
    each = [entered(10, through=past), entered(9), entered(10, through=past)]
    text = told(*each)
    assert text.startswith("rank 1 and ranks 0, 2 called different collectives. In collective 9")
    assert "all_reduce of float [3] on rank 1, and all_reduce of float [5] on ranks 0, 2" in text
    assert text.endswith("Ranks 0, 2 got through it and are stuck further on.")


def test_a_rank_that_is_late_has_called_the_same() -> None:
    past = (entered(8, waits=False), entered(9, waits=False))
    text = told(entered(10, through=past), entered(9), entered(10, through=past))
    assert text.startswith("rank 1 is stuck in the backward of step 4, ranks 0, 2 wait")


def test_three_kinds_of_which_the_most_are_waited_for() -> None:
    past = [(entered(9, waits=False, size=size),) for size in (4, 5)]
    each = [entered(10, through=one) for one in past]
    text = told(*each, entered(9), entered(9))
    assert "different collectives. In collective 9" in text


def test_calls_that_a_backend_put_under_one_number() -> None:
    """Which of them another rank's call stands beside is not known."""
    past = (entered(9, "all_gather", waits=False, size=5), entered(9, "coalesced", waits=False))
    text = told(entered(10, through=past), entered(9))
    assert "different collectives" not in text


def test_a_rank_whose_collective_failed_has_not_got_through() -> None:
    failed = RankOutcome(
        rank=0, ended="failed", peer=True, collectives=(entered(9, waits=False, size=5),)
    )
    hung = RankOutcome(rank=1, ended=HUNG, step=4, phase="backward", collectives=(entered(9),))
    (finding,) = diagnose(Evidence(ranks=(failed, hung)), Config())
    assert "different collectives" not in finding.title


def test_of_a_rank_that_was_aborted_no_other_is_accused() -> None:
    last = [entered(9, waits=False, size=size) for size in (2, 1000)]
    others = [
        RankOutcome(
            rank=rank, ended="failed", peer=True, collectives=(replace(one, backend="gloo"),)
        )
        for rank, one in zip((0, 2), last, strict=True)
    ]
    aborted = RankOutcome(rank=1, ended="died", waits=True, aborted=True)
    (finding,) = diagnose(Evidence(ranks=(others[0], aborted, others[1])), Config())
    assert (
        finding.title == "rank 1 was aborted in a collective that another rank called differently"
    )
    assert "rank 0: all_reduce of float [2]" in finding.explanation
    assert "rank 2: all_reduce of float [1000]" in finding.explanation


def test_the_watchdog_of_another_backend_aborts_too() -> None:
    calls = (replace(entered(3), backend="nccl"), replace(entered(9, waits=False), backend="gloo"))
    hung = RankOutcome(rank=0, ended=HUNG, collectives=calls)
    aborted = RankOutcome(rank=1, ended="died", waits=True, aborted=True)
    codes = {found.code for found in diagnose(Evidence(ranks=(hung, aborted)), Config())}
    assert "ND804" not in codes


def test_shapes_that_may_differ() -> None:
    text = told(entered(9, "gather"), entered(9, "gather", size=5), entered(9, "gather"))
    assert text.startswith("all ranks are stuck at the same place")


def test_the_rank_that_has_entered_fewer_is_behind() -> None:
    text = told(entered(9), entered(8, waits=False), entered(9))
    assert text.startswith("rank 1 is stuck in the backward of step 4, ranks 0, 2 wait")
    assert "all_reduce of float [3], collective 9 of group 0, which rank 1 has not entered" in text
    assert "its last one in this group was 8." in text


def test_what_a_stranger_writes_into_a_report_is_no_collective() -> None:
    row = {"group": "0", "about": "", "number": 1, "op": "x", "sizes": [["a"]], "types": []}
    assert collectives_of([row]) == ()
    assert collectives_of([{**row, "sizes": [[float("inf")]]}]) == ()
    assert collectives_of([{"op": "x"}]) == ()
    deep: dict[str, object] = {"group": "0", "about": "", "number": 1, "op": "x"}
    deep |= {"sizes": [], "types": []}
    deep["through"] = [deep]
    assert [one.through[0].through for one in collectives_of([deep])] == [()]
    assert collectives_of(3) == ()


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"is_p2p": False, "time_created_ns": 1, "process_group": "0"},
        {"is_p2p": False, "time_created_ns": "x", "process_group": ["0", ""]},
    ],
)
def test_a_recorder_of_another_format_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, entry: dict[str, object]
) -> None:
    other = types.ModuleType("torch._C._distributed_c10d")
    other._dump_fr_trace_json = lambda: json.dumps({"entries": [entry]}).encode()  # type: ignore[attr-defined]
    other._dump_nccl_trace_json = lambda: b"["  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, other.__name__, other)
    assert last_collectives() == ()
