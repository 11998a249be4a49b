"""What single samples of a data set show when they are drawn again."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.facts.source import SourceSpan

AS_IT_WAS = "as it was"
"""Of a picture that is neither mirrored nor turned."""
ELSEWHERE = "cropped at a different place"
"""Of an image, beside its mask."""


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
    filled: bool = False
    """The training has left nothing to write over: seen with random numbers in its place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpairedItem:
    """A sample whose image is turned or mirrored at random while its mask, or the picture that
    belongs to it, is not, or differs."""

    index: int
    image: str
    mask: str
    kind: str = "mask"
    """`mask` or `picture`, of the part `mask`."""
    mask_shape: tuple[int, ...]
    turns: tuple[tuple[str, str], ...]
    """How the image and how the mask of one draw lie relative to another draw's, each kind once."""
    pairs: int
    """The pairs of draws where both could be told and one of them was turned; for an image that is
    elsewhere than its mask, the draws."""
    apart: int
    """Those of them in which the two lie differently."""
    line: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BlurredMask:
    """A mask of classes that has, since it was resized or turned, values between them."""

    index: int
    mask: str
    mask_shape: tuple[int, ...]
    values: tuple[float, ...]
    """Some of those values, the smallest first."""
    pixels: int
    """How many have one of them."""
    share: float
    """Of all pixels."""
    line: SourceSpan


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedDraws:
    """Two workers of the loader, or one in two epochs, draw the same random numbers for a sample;
    one worker draws others each time."""

    index: int
    workers: int
    part: str
    """The part of the sample that changes from draw to draw."""
    holder: str
    """The generator that the data set keeps; empty where the workers' own seed is the cause."""
    line: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitOverlap:
    """Samples that are trained on and validated on."""

    number: int
    """Of the validation's data set, among those that were drawn from."""
    shared: int
    """Of the validation's samples that were looked at, those that are trained on as well."""
    looked_at: int
    validation: int
    training: int
    """How many samples each data set has."""
    by_index: bool
    """By their numbers in one data set, and not by their values."""
    line: SourceSpan | None = None
    """Where the validation's part was taken out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkewedSampling:
    """A weighted sampler that draws the most frequent class more often still, or that has fewer
    weights than the data set has samples."""

    weights: int
    samples: int
    """How many there are."""
    most: int = 0
    least: int = 0
    """The most frequent class and the least frequent one, by their numbers."""
    there: float = 1.0
    """How many samples the most frequent class has for one of the least frequent."""
    drawn: float = 1.0
    """The same of what is drawn."""
    line: SourceSpan | None = None
    """Where the sampler was made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedItem:
    """A picture whose channels were put first without being moved."""

    index: int
    part: str
    given: tuple[int, int, int]
    """(height, width, channels)"""
    made: tuple[int, int, int]
    line: SourceSpan


@dataclass(frozen=True, kw_only=True, slots=True)
class StrayEdge:
    """A graph with edges from or to nodes that it does not have."""

    index: int
    part: str
    """What the graph calls its edges."""
    nodes: int
    edges: int
    stray: int
    """How many of the edges are so."""
    edge: tuple[int, int]
    """The first of them, from and to."""
    line: SourceSpan | None = None
    """The line that made the graph's edges so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReorderedBatch:
    """A batch whose parts hold their samples in different orders."""

    moved: str
    """The part in another order than the samples were given in, as `['ids']` or `[0]`."""
    kept: str
    """A part in their own order."""
    rows: int
    """How many rows of that belong to another sample than the row of the part that has moved."""
    of: int
    """Samples that were put together."""
    line: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UnshiftedEdges:
    """A batch of graphs whose edges count the nodes of each graph from 0."""

    graphs: int
    """That were put together."""
    edges: int
    nodes: int
    """Of all graphs."""
    reached: int
    """Nodes that edges lead to or from, as far as their numbers go."""
    line: SourceSpan | None
    """Of the collate function."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UncollatedFacts:
    """Samples that a collate function was given, and of which its batch holds nothing."""

    read: int
    """Samples whose exchange for another one changes the batch."""
    of: int
    """Those that were collated."""
    unread: int
    """The place of the first that is not read."""
    line: SourceSpan | None
    """Of the collate function, the one that makes the first part of the batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemFacts:
    """Of a data set with `__getitem__`, asked in a process of its own."""

    changing: ChangingItem | None = None
    unpaired: UnpairedItem | None = None
    blurred: BlurredMask | None = None
    repeated: RepeatedDraws | None = None
    overlap: SplitOverlap | None = None
    sampling: SkewedSampling | None = None
    stray: StrayEdge | None = None
    mixed: MixedItem | None = None
    reordered: ReorderedBatch | None = None
    unshifted: UnshiftedEdges | None = None
    uncollated: UncollatedFacts | None = None
