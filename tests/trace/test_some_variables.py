"""A few variables of a function that runs, read without all the others."""

import sys
from collections.abc import Iterator
from typing import Any

from nanodoc.trace.frame_variables import SomeVariables, variables_of_frame


def read(*names: str) -> dict[str, Any]:
    frame = sys._getframe(1)
    found = SomeVariables(frame.f_code, names).of(frame)
    everything = variables_of_frame(frame)
    assert {name: found[name] for name in names if name in found}.keys() == {
        name for name in names if name in everything
    }
    for name in names:
        assert found.get(name) is everything.get(name)
    return found


def test_arguments_variables_and_those_not_bound_yet() -> None:
    def function(first: Any, *rest: Any, key: int = 4, **more: Any) -> None:
        number = [1]
        assert "late" not in read("first", "rest", "key", "more", "number", "late", "absent")
        late = number
        assert read("late")["late"] is number
        del late
        assert "late" not in read("late", "number")

    function(object(), 2, 3, other=5)


def test_a_variable_of_an_inner_function() -> None:
    shared = [1]

    def inner() -> list[int]:
        return shared

    assert read("shared")["shared"] is inner()


def test_a_generator() -> None:
    def numbers() -> Iterator[int]:
        for number in range(3):
            found = read("number")
            yield number + found["number"]

    assert list(numbers()) == [0, 2, 4]


def test_nothing_is_held_and_locals_stay_as_they_are() -> None:
    class Thing:
        pass

    thing = Thing()
    before = locals()
    late = 1
    count = sys.getrefcount(thing)
    read("thing", "late")
    assert sys.getrefcount(thing) == count
    assert "late" not in before
    assert late == 1
