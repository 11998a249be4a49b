"""What the child says, and what the parent believes of it."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanodoc.facts.failure import Failure
from nanodoc.facts.notes import (
    CallNotes,
    ClassCounts,
    CtcLengths,
    LabelNotes,
    LossNotes,
    MaskedRows,
    NumberNotes,
    Range,
)
from nanodoc.facts.source import SourceSpan
from nanodoc.heartbeat.last_words import failure_of, note_failure
from nanodoc.heartbeat.trail import TrailWriter, shared_page
from nanodoc.report.report import VitalSigns
from nanodoc.supervise.wire import Receiver, WireError, opened, packed


def test_a_dataclass_arrives_as_it_was_sent() -> None:
    signs = VitalSigns(steps=3, losses=(1.0, float("inf")))
    assert Receiver().feed(packed("report", signs)) == [("report", signs)]


@pytest.mark.parametrize(
    "notes",
    [
        CallNotes(
            value=1.5,
            loss=LossNotes(targets=Range(0.0, 1.0)),
            labels=LabelNotes(
                classes=3, targets=8, counts=ClassCounts(top=1, top_count=4, least_count=2, seen=3)
            ),
            number=NumberNotes(taken_from=1.0),
        ),
        MaskedRows(rows=4, fully_masked=1),
        CtcLengths(targets=2, too_long=1, first=(0, 3, 5)),
    ],
)
def test_notes_arrive_as_they_were_sent(notes: object) -> None:
    assert Receiver().feed(packed("notes", notes)) == [("notes", notes)]


@given(
    st.lists(
        st.tuples(
            st.text(), st.integers() | st.text() | st.none() | st.tuples(st.floats(allow_nan=False))
        )
    ),
    st.integers(1, 40),
)
def test_messages_are_whole_however_they_are_cut(
    messages: list[tuple[str, object]], size: int
) -> None:
    receiver, found = Receiver(), []
    data = b"".join(packed(kind, value) for kind, value in messages)
    for start in range(0, len(data), size):
        found += receiver.feed(data[start : start + size])
    assert found == messages


def test_nothing_but_a_report_is_unpickled() -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, ("touch owned",)

    with pytest.raises(WireError, match="not part of a report"):
        opened(pickle.dumps(("report", Evil())))
    assert not os.path.exists("owned")


@settings(deadline=None)  # a pickle may ask for much memory, which takes its time
@given(st.binary(max_size=200))
def test_garbage_is_refused_and_never_obeyed(body: bytes) -> None:
    with contextlib.suppress(WireError):
        Receiver().feed(struct.pack("<I", len(body)) + body)
    with pytest.raises(WireError):
        Receiver().feed(struct.pack("<I", 1 << 31))


def test_crumbs_are_there_when_the_process_is_not() -> None:
    page = shared_page()
    crumbs = TrailWriter(page)
    crumbs.plan(10, "cpu")
    failure = Failure(
        type="ValueError",
        message="no",
        phase="forward",
        raised_by_torch=False,
        torch_function=None,
        notes=("a note",),
        frames=(
            SourceSpan(
                file="train.py",
                line=3,
                end_line=3,
                column=1,
                end_column=5,
                function="f",
                code="fail",
            ),
        ),
    )
    child = os.fork()
    if child == 0:
        for step in range(5000):
            crumbs.at(step, "forward")
            crumbs.finished(step, float(step), 1.0)
        note_failure(crumbs, failure, 4999)
        os._exit(0)
    os.waitpid(child, 0)
    trail = crumbs.trail()
    assert (trail.step, trail.phase, trail.finished, trail.planned, trail.device) == (
        4999,
        "forward",
        5000,
        10,
        "cpu",
    )
    assert trail.losses[-1] == 4999.0
    assert len(trail.losses) == 4096
    assert failure_of(trail.words) == failure
    os.close(page)


def test_steps_that_nanodoc_runs_again_leave_no_crumbs() -> None:
    page = shared_page()
    crumbs = TrailWriter(page)
    crumbs.at(4, "backward")
    crumbs.examining()
    crumbs.at(2, "data")
    crumbs.phase("forward")
    assert (crumbs.trail().step, crumbs.trail().phase) == (4, "examination")
    os.close(page)
