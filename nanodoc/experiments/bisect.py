"""The smallest part of a list that still fails: delta debugging.

The algorithm is ddmin of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input"
(IEEE TSE 2002): try each part and each complement, in ever finer parts, until no single element can
be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def minimal_failing(
    items: Sequence[int], fails: Callable[[tuple[int, ...]], bool], *, most: int = 200
) -> tuple[tuple[int, ...], bool]:
    """A subset of `items` that fails and from which no element can be left out; and whether that is
    proven.

    `fails(subset)` is called at most `most` times, never twice for one subset; then the smallest
    failing subset so far is given with False. The caller has seen that all of `items` fail.
    """
    known: dict[tuple[int, ...], bool] = {}
    current, parts = tuple(items), 2

    def check(subset: tuple[int, ...]) -> bool:
        if subset not in known and len(known) < most:
            known[subset] = bool(subset) and fails(subset)
        return known.get(subset, False)

    while len(current) > 1:
        size = -(-len(current) // parts)
        chunks = [current[i : i + size] for i in range(0, len(current), size)]
        smaller = next((chunk for chunk in chunks if check(chunk)), None)
        if smaller is not None:
            current, parts = smaller, 2
            continue
        rest = None
        if parts > 2:
            rest = next(
                (
                    r
                    for i in range(len(chunks))
                    if check(r := tuple(x for j, c in enumerate(chunks) if j != i for x in c))
                ),
                None,
            )
        if rest is not None:
            current, parts = rest, max(parts - 1, 2)
            continue
        if parts >= len(current) or len(known) >= most:
            break
        parts = min(len(current), parts * 2)
    return current, len(known) < most
