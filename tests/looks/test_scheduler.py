"""All looks after a run share one budget: the likeliest for its cost comes first, and what no time
was left for is told. Time passes only when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanodoc.looks.scheduler import Look, Looks, OutOfTime, Place, Stage

EXTRA = "experiments and fixes"
LAST = "examination of the last steps"


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def made(budget: float, step: float = 1.0) -> tuple[Looks, Clock]:
    """A scheduler whose budget has begun, for a run with steps of `step` seconds."""
    clock = Clock()
    looks = Looks(budget, clock=clock)
    looks.begin(step)
    return looks, clock


def look(name: str, work: Callable[[Place], Any], **more: Any) -> Look:
    return Look(**{"name": name, "group": EXTRA, "stage": Stage.EXPERIMENTS, "work": work} | more)


def lasting(clock: Clock, seconds: float, done: list[str], name: str) -> Callable[[Place], None]:
    """Work of one piece."""

    def work(place: Place) -> None:
        clock.now += seconds
        done.append(name)

    return work


def test_without_a_budget_nothing_is_done_but_what_is_due() -> None:
    looks, clock = made(0)
    done: list[str] = []
    looks.add(look("the last step", lasting(clock, 1, done, "due"), due=True, group=LAST))
    looks.add(look("padding", lasting(clock, 1, done, "padding"), group=LAST))
    looks.add(look("later tokens", lasting(clock, 1, done, "later"), group=LAST))
    looks.add(look("fixes", lasting(clock, 1, done, "fixes")))
    looks.run()
    assert done == ["due"]
    assert looks.not_checked() == [
        (LAST, "no time was left for padding, later tokens (--budget 0s)"),
        (EXTRA, "no time was left (--budget 0s)"),
    ]


def test_a_budget_that_fits_only_the_cheap_looks() -> None:
    looks, clock = made(10)
    done: list[str] = []
    looks.add(look("300 steps again", lasting(clock, 300, done, "costly"), runs=300))
    looks.add(look("float64", lasting(clock, 2, done, "cheap"), runs=2))
    looks.run()
    assert done == ["cheap"]
    assert looks.not_checked() == [(EXTRA, "no time was left for 300 steps again (--budget 10s)")]


def test_the_likelier_of_two_of_one_cost_comes_first() -> None:
    looks, clock = made(60)
    done: list[str] = []
    looks.add(look("rare", lasting(clock, 1, done, "rare"), likely=0.1))
    looks.add(look("likely", lasting(clock, 1, done, "likely"), likely=0.2))
    looks.add(look("later", lasting(clock, 1, done, "later"), likely=1.0, stage=Stage.FIXES))
    looks.run()
    assert done == ["likely", "rare", "later"]
    assert looks.not_checked() == []


def test_one_that_raises_costs_itself_only() -> None:
    looks, clock = made(60)
    done: list[str] = []

    def broken(place: Place) -> None:
        raise KeyError("broken on purpose")

    looks.add(look("broken", broken, likely=1.0))
    looks.add(look("sound", lasting(clock, 1, done, "sound")))
    looks.run()
    assert done == ["sound"]
    why = "stopped by an error of nanodoc's own: KeyError: 'broken on purpose' (broken)"
    assert looks.not_checked() == [(EXTRA, why)]


def test_a_developer_sees_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, _ = made(60)
    looks.add(look("broken", lambda place: {}["broken on purpose"]))
    monkeypatch.setenv("NANODOC_DEBUG", "1")
    with pytest.raises(KeyError):
        looks.run()


def test_an_interruption_is_told_once_and_ends_all() -> None:
    looks, clock = made(60)
    done: list[str] = []

    def interrupted(place: Place) -> None:
        raise KeyboardInterrupt

    looks.add(look("first", interrupted, likely=1.0, rest="further experiments"))
    looks.add(look("second", lasting(clock, 1, done, "second")))
    looks.run()
    looks.add(look("fixes", lasting(clock, 1, done, "fixes"), stage=Stage.FIXES))
    looks.run()
    assert (done, looks.interrupted) == ([], True)
    assert looks.not_checked() == [("further experiments", "interrupted")]


def test_a_look_that_does_not_apply_is_not_told() -> None:
    looks, clock = made(0)
    looks.add(look("padding", lasting(clock, 1, [], ""), asks=lambda: False))
    looks.run()
    assert looks.not_checked() == []


def test_what_it_lacks_is_told() -> None:
    looks, clock = made(60)
    looks.add(look("past", lasting(clock, 1, [], ""), needs=lambda: "no copy of the weights"))
    looks.run()
    assert looks.not_checked() == [(EXTRA, "no copy of the weights")]


def test_a_look_asks_between_its_pieces() -> None:
    looks, clock = made(5)
    done: list[str] = []

    def work(place: Place) -> None:
        for name in ("eval mode", "float64", "bfloat16"):
            if place.allows(2, name):
                clock.now += 2
                done.append(name)

    looks.add(look("experiments", work))
    looks.run()
    assert done == ["eval mode", "float64"]
    assert looks.not_checked() == [(EXTRA, "no time was left for bfloat16 (--budget 5s)")]


def test_a_share_is_one_of_the_looks_own_place() -> None:
    looks, _ = made(60)
    parts: list[tuple[float, float]] = []

    def work(place: Place) -> None:
        parts.append((place.left, place.part(0.25) - looks.clock()))

    looks.add(look("an eighth", work, share=0.5))
    looks.add(look("four seconds", work, most=4, likely=0.01))
    looks.run()
    assert parts == [(30, 7.5), (4, 1)]


def test_its_own_end_is_no_lack_of_budget() -> None:
    looks, clock = made(60)

    def work(place: Place) -> Iterator[None]:
        while True:
            clock.now += 1
            yield

    looks.add(look("samples", work, most=4))
    looks.run()
    assert clock.now == 1004
    assert looks.not_checked() == []


def test_a_step_that_is_broken_off_is_told() -> None:
    looks, _ = made(60)

    def work(place: Place) -> None:
        raise OutOfTime

    looks.add(look("float64", work))
    looks.run()
    assert looks.not_checked() == [(EXTRA, "no time was left for float64 (--budget 60s)")]


def test_what_another_process_has_used_is_gone() -> None:
    clock = Clock()
    looks = Looks(60, spent=50, clock=clock)
    looks.begin()
    assert looks.left == 10


def test_a_run_that_goes_on_has_its_budget_again() -> None:
    looks, clock = made(60)
    clock.now += 100
    looks.going_on()
    looks.begin()
    assert looks.left == 60


SPECS = st.lists(
    st.fixed_dictionaries(
        {
            "stage": st.sampled_from(Stage),
            "likely": st.floats(0.01, 1),
            "runs": st.floats(0, 20),
            "pieces": st.lists(st.floats(0.01, 10), min_size=1, max_size=5),
            "due": st.booleans(),
            "asks": st.booleans(),
            "lacks": st.booleans(),
            "ends": st.sampled_from(["well", "well", "well", "error", "plain"]),
        }
    ),
    max_size=8,
)


@given(budget=st.floats(0, 60), specs=SPECS)
def test_the_budget_holds_and_every_look_is_done_or_told(
    budget: float, specs: list[dict[str, Any]]
) -> None:
    """Whatever is registered: no piece begins after the end of the budget, nothing is forgotten,
    and the order is that of stage and of likelihood for its cost."""
    looks, clock = made(budget)
    began: list[tuple[float, bool]] = []
    finished: list[str] = []

    def working(spec: dict[str, Any], name: str) -> Callable[[Place], Any]:
        def pieces(place: Place) -> Iterator[None]:
            for seconds in spec["pieces"]:
                began.append((clock.now, spec["due"]))
                clock.now += seconds
                yield
            finished.append(name)
            if spec["ends"] == "error":
                raise ValueError(name)

        def plain(place: Place) -> None:
            for seconds in spec["pieces"]:
                if not spec["due"] and not place.allows(0):
                    return
                began.append((clock.now, spec["due"]))
                clock.now += seconds
            finished.append(name)

        return plain if spec["ends"] == "plain" else pieces

    for number, spec in enumerate(specs):
        looks.add(
            Look(
                name=f"look {number}",
                group=f"group {number}",
                work=working(spec, f"look {number}"),
                asks=lambda spec=spec: spec["asks"],
                needs=lambda spec=spec: "it can't be done" if spec["lacks"] else "",
                **{key: spec[key] for key in ("stage", "likely", "runs", "due")},
            )
        )
    looks.run()

    assert all(at < 1000 + budget for at, due in began if not due)
    told = [what for what, _ in looks.not_checked()]
    for number, spec in enumerate(specs):
        name, group = f"look {number}", f"group {number}"
        if not spec["asks"]:
            assert name not in finished
            assert group not in told
        elif spec["lacks"]:
            assert name not in finished
            assert told.count(group) == 1
        elif spec["ends"] == "error" and name in finished:
            assert told.count(group) == 1
        else:
            assert (name in finished) != (group in told)
    order = [taken.look for taken in looks.taken]
    turns = [(one.stage, -one.likely / max(looks.estimate(one), 1e-3)) for one in order]
    assert turns == sorted(turns)
