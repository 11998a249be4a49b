"""Many ranks: each reads few files, their reports are gathered by groups, and the report of all
tells them in spans."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.merging import SICK_RANK, merged, told
from nanodoc.facts.ranks import CLEAN, LOST, SICK, WELL, RankOutcome, spans_of, with_roots
from nanodoc.heartbeat.trail import NoTrail, Trail, TrailWriter, shared_page
from nanodoc.report.report import Report
from nanodoc.supervise import gathering, rendezvous
from nanodoc.supervise.gathering import GROUP, Gathered, bounded
from nanodoc.supervise.rendezvous import Ranks
from nanodoc.supervise.wire import opened

Pairs = list[tuple[RankOutcome, Report | None]]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SILENT", "_ARRIVAL", "_ALONE", "_REPORTING"):
        monkeypatch.setattr(rendezvous, name, 0.5)


def settled(ranks: Iterable[Ranks], size: int) -> Pairs:
    """What the one rank that reports is given, when these have ended."""
    found: list[Pairs] = []

    def run(one: Ranks) -> None:
        pairs = one.settle(*told(one.mine, size))
        if pairs is not None:
            found.append(pairs)
            one.printed()

    threads = [threading.Thread(target=run, args=(one,)) for one in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (pairs,) = found
    return pairs


def test_the_report_of_all_tells_the_ranks_in_spans(tmp_path: Path) -> None:
    report, _, small = merged(128, tmp_path)
    cause, local = report.findings
    assert (cause.code, cause.rank, dict(cause.evidence)["ranks"]) == ("ND101", 17, "17 of 128")
    assert local.title == "rank 17 of 128 failed, ranks 0–127 but 17 did not"
    assert "Ranks 0–127 but 17 only waited for it." in local.explanation
    assert [effect[0] for effect in local.effects] == ["ranks 0–127 but 17: waited for rank 17"]
    assert [one.rank for one in report.ranks] == list(range(128))
    assert (report.run.rank, report.vitals.losses[0]) == (SICK_RANK, 1 / (SICK_RANK + 1))
    assert not list(tmp_path.glob(".nanodoc-ranks-*"))
    _, _, large = merged(512, tmp_path)
    assert large < 6 * small  # it grows with the ranks, and not with their square


def test_a_group_of_which_nobody_is_left(tmp_path: Path, impatient: None) -> None:
    size = 2 * GROUP + 4
    ranks = [Ranks(number, size, tmp_path, "run") for number in range(size)]
    for one in ranks[1:GROUP]:
        one.tell(*told(one.mine, size))
    pairs = settled([ranks[0], *ranks[2 * GROUP :]], size)
    assert [outcome.rank for outcome, _ in pairs] == list(range(size))
    gone = [outcome.rank for outcome, report in pairs if outcome.ended == LOST and report is None]
    assert gone == list(range(GROUP, 2 * GROUP))


def test_the_next_rank_reports_where_the_first_is_gone(tmp_path: Path, impatient: None) -> None:
    size = GROUP + 2
    ranks = [Ranks(number, size, tmp_path, "run") for number in range(size)]
    for one in ranks[2:GROUP]:
        one.tell(*told(one.mine, size))
    pairs = settled([ranks[1], *ranks[GROUP:]], size)
    assert [outcome.rank for outcome, _ in pairs if outcome.ended == LOST] == [0]


def test_the_whole_first_group_is_gone(tmp_path: Path, impatient: None) -> None:
    size = GROUP + 3
    ranks = [Ranks(number, size, tmp_path, "run") for number in range(GROUP, size)]
    pairs = settled(ranks, size)
    assert sum(outcome.ended == LOST for outcome, _ in pairs) == GROUP


def test_while_all_train_few_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_BEAT", 0.0)
    ranks = Ranks(40, 1024, tmp_path, "run")
    read: list[Path] = []
    original = Path.read_text

    def counted(path: Path, *args: Any, **kwargs: Any) -> str:
        read.append(path)
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", counted)
    for step in range(50):
        assert ranks.beat(Trail(step=step, phase="forward"), NoTrail()) is None
    assert len(read) < GROUP
    Ranks(3, 1024, tmp_path, "run").tell(*_failed(3))
    monkeypatch.setattr(rendezvous, "_GRACE", -1.0)
    assert ranks.beat(Trail(step=49, phase="forward"), NoTrail()) == "waited for rank 3"


@pytest.mark.parametrize(("other", "left"), [(6, False), (7, True)])
def test_a_rank_that_asks_is_told_of_another_that_has_gone_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: int, left: bool
) -> None:
    monkeypatch.setattr(rendezvous, "_BEAT", 0.0)
    first, second = (Ranks(number, 2, tmp_path, "run") for number in range(2))
    crumbs = TrailWriter(shared_page())
    crumbs.at(6, "backward")
    second.beat(Trail(step=other, phase="forward"), NoTrail())
    first.beat(crumbs.trail(), crumbs)
    assert not crumbs.answered, "it does not ask"
    crumbs.ask(6)
    first.beat(crumbs.trail(), crumbs)
    assert crumbs.answered == left
    crumbs.ask(None)
    assert not crumbs.answered
    assert crumbs.trail().asked is None


def _failed(rank: int) -> tuple[RankOutcome, Report]:
    outcome, report = told(rank, 1024)
    return replace(outcome, ended="failed"), report


def test_tables_that_make_a_report_too_large_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_LARGEST", 100_000)
    outcome, report = told(3, 8)
    report = replace(report, frames=("x" * 200_000,))  # type: ignore[arg-type]  # only its size matters
    _, (_, kept) = opened(bounded(outcome, report)[4:])
    assert kept.frames == ()
    assert [what for what, _ in kept.not_checked] == ["the tables of rank 3 (frames)"]
    assert kept.vitals == report.vitals


def test_what_many_say_alike_is_held_once() -> None:
    found = Gathered()
    for rank in range(100):
        found.add(*told(rank, 100))
    pairs = found.pairs()
    assert len({id(report) for _, report in pairs}) == 2
    assert len({id(outcome.fingerprints) for outcome, _ in pairs}) == 1
    whole = [(o.rank, r.run.rank) for o, r in pairs if r is not None and r.vitals.losses]
    assert whole == [(SICK_RANK, SICK_RANK)]


@given(st.sets(st.integers(0, 60), min_size=1, max_size=40))
def test_spans_name_every_rank(ranks: set[int]) -> None:
    text = spans_of(sorted(ranks))
    counted = 0
    if " and " in text:
        text, _, more = text.partition(" and ")
        counted = int(more.removesuffix(" more"))
    text, _, excepted = text.partition(" but ")
    named: set[int] = set()
    for part in text.split(", "):
        first, _, last = part.partition("–")
        named |= set(range(int(first), int(last or first) + 1))
    named -= {int(one) for one in excepted.split(", ") if one}
    assert named <= ranks
    assert len(named) + counted == len(ranks)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "3"),
        ([0, 1], "0, 1"),
        ([0, 2], "0, 2"),
        ([0, 1, 2, 5], "0–2, 5"),
        ([*range(17), *range(18, 64)], "0–63 but 17"),
        ([*range(0, 40, 2)], "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_how_spans_are_written(ranks: list[int], text: str) -> None:
    assert spans_of(ranks) == text


def test_who_holds_a_part_has_not_made_it() -> None:
    met = [RankOutcome(rank=rank, ended=CLEAN if rank == 1 else WELL, step=6) for rank in range(3)]
    assert [one.ended for one in with_roots(met)] == [WELL, SICK, WELL]
    met[1] = replace(met[1], sharded=True)
    assert with_roots(met) == met
