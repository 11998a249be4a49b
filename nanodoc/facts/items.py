"""What single samples of a data set show when they are drawn again."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.facts.source import SourceSpan

AS_IT_WAS = "as it was"
"""Of a picture that is neither mirrored nor turned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangingItem:
    """A sample that is another one each time it is drawn, for the draw writes into what the data
    set keeps: with the old content put back, the sample is the old one again."""

    index: int
    holder: str
    """What is written into, as an attribute of the data set."""
    part: str
    """The part of the sample that changes, as `['image']`; empty where a sample is one tensor."""
    ranges: tuple[tuple[float, float], ...]
    """The smallest and the largest value of that part, draw after draw."""
    line: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpairedItem:
    """A sample whose image is turned or mirrored at random while its mask is not, or differs."""

    index: int
    image: str
    mask: str
    mask_shape: tuple[int, ...]
    turns: tuple[tuple[str, str], ...]
    """How the image and how the mask of one draw lie relative to another draw's, each kind once."""
    pairs: int
    """The pairs of draws where both could be told and one of them was turned."""
    apart: int
    """Those of them in which the two lie differently."""
    line: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemFacts:
    """Of a data set with `__getitem__`, asked in a process of its own."""

    changing: ChangingItem | None = None
    unpaired: UnpairedItem | None = None
