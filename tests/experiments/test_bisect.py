"""Delta debugging finds the guilty ones, and asks no more often than it may."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nanodoc.experiments.bisect import minimal_failing


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 64).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=4))
    )
)
def test_one_bad_element_of_several_suffices(drawn: tuple[int, set[int]]) -> None:
    size, bad = drawn
    found, proven = minimal_failing(range(size), lambda subset: bool(bad & set(subset)))
    assert proven
    assert len(found) == 1
    assert set(found) <= bad


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 48).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=3))
    )
)
def test_elements_that_fail_only_together(drawn: tuple[int, set[int]]) -> None:
    size, bad = drawn
    calls: list[tuple[int, ...]] = []

    def fails(subset: tuple[int, ...]) -> bool:
        calls.append(subset)
        return bad <= set(subset)

    found, proven = minimal_failing(range(size), fails, most=2000)
    assert proven
    assert set(found) == bad
    assert len(calls) == len(set(calls))


@given(st.integers(2, 40), st.integers(0, 10))
def test_it_stops_when_told(size: int, most: int) -> None:
    calls: list[tuple[int, ...]] = []

    def fails(subset: tuple[int, ...]) -> bool:
        calls.append(subset)
        return len(subset) > size // 2

    found, _ = minimal_failing(range(size), fails, most=most)
    assert len(calls) <= most
    assert found == tuple(range(size)) or len(found) > size // 2
