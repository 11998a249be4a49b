"""What was measured of the values that calls and ops take and give, by kind. Like `evidence`:
plain, frozen, without torch. A part that was not measured is None."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and the largest of several values."""

    low: float
    high: float

    @property
    def largest(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, kw_only=True, slots=True)
class LossNotes:
    """What one of torch's loss functions was given."""

    inputs: Range | None = None
    """Of the predictions."""
    targets: Range | None = None
    below_0: float = 0.0
    """The share of the targets that ReLU can't return, up to 0.05 of their range."""
    outside_01: float = 0.0
    """The share of the targets that a sigmoid can't return, up to 0.05 of their range."""
    outside_11: float = 0.0
    """The share of the targets that tanh can't return, up to 0.05 of their range."""
    zeros: float | None = None
    """The share of 0 among targets of which each is 0 or 1."""
    equal: tuple[int, ...] = ()
    """The axes along which the predictions are equal while the targets are not."""
    log_sums: Range | None = None
    """The logarithms of the sums of each frame's probabilities, which a CTC loss is given: 0 where
    these are probabilities."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassCounts:
    """How often the classes occur among the targets of one batch that are not ignored."""

    top: int
    """The most frequent class."""
    top_count: int
    least_count: int
    """Targets of the rarest class that occurs."""
    seen: int
    """How many classes occur."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelNotes:
    """The targets of a loss among classes."""

    classes: int
    targets: int | None = None
    """How many there are; None where each is a probability for each class."""
    ignored: int = 0
    """How many of them are `ignore_index`."""
    counts: ClassCounts | None = None
    """None where a target is no class."""

    @property
    def kept(self) -> int:
        """Targets that are not ignored."""
        return (self.targets or 0) - self.ignored


@dataclass(frozen=True, kw_only=True, slots=True)
class AllLabels:
    """The targets of a loss with class weights, in all batches that were looked at so far."""

    labels: int
    """How many there are."""
    top: int
    """The most frequent class."""
    top_count: int
    least: int
    """The rarest class that occurs."""
    least_count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstantNotes:
    """A loss beside that of the best constant answer, over all batches that were looked at so
    far."""

    value: float
    """The loss, its mean."""
    constant: float
    """What a model costs that ignores its inputs and knows how often each target occurs: the
    entropy of the labels, the variance of the numbers."""
    targets: int
    """How many there are."""
    kinds: int
    """How many classes occur among them; 1 for numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlankNotes:
    """Blanks among the labels of a CTC loss."""

    labels: int
    """How many labels there are."""
    blanks: int
    """How many of them are the blank."""
    behind: int
    """How many blanks stand behind the last other label of their sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairNotes:
    """How near the samples of a batch are to those that a contrastive loss pairs them with: the
    share of the others in the same half of the batch that are farther; 0.5 for strangers, 1 for the
    nearest."""

    wanted: float
    """To the samples that the loss pairs them with."""
    in_halves: float
    """To the other view of each sample, where the views lie in two halves of the batch."""
    side_by_side: float
    """To the other view of each sample, where the views lie side by side."""
    same: bool
    """The two samples of every pair are one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupNotes:
    """What is looked up in a table."""

    rows: int
    """Of the table."""
    ids: Range | None
    """Of this batch; where all ids of it are one, of all batches so far. None for no ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskNotes:
    """A causal mask upside down: each position sees all that comes after it, and nothing before."""

    positions: int
    sees_itself: bool
    """Each position sees itself as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmittedNotes:
    """A mask of zeros and ones that lets through one and the same row, in all batches so far, and
    hides rows that differ."""

    kept: int
    """Rows that are let through, in all batches."""
    hidden: int
    zeros: bool
    """The row that is let through is zero everywhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductNotes:
    """A product of two tensors, one of which is a mask of zeros and ones."""

    ones: float | None = None
    """The share of ones in a mask with one value for each row, 0 where all are 0. Such a mask has
    no gradient; instead of 1 it may have one other number."""
    masked: Range | None = None
    """Of what is multiplied with a mask of its shape."""
    admitted: AdmittedNotes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadNotes:
    """What the first layer of a network reads."""

    mark: float
    """A number that equal readings share, and hardly any others."""
    address: int
    """Where in memory it lies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberNotes:
    """What a call does with a single number."""

    factor: float | None = None
    """What a multiplication or division multiplies by; in place also of a tensor, of which the
    factor that is nearest to 1 counts."""
    offset: float | None = None
    """What an addition or subtraction adds."""
    taken_from: float | None = None
    """The number that the tensor is subtracted from: 1 of `1 - x`."""


_NO_LOSS, _NO_PRODUCT, NO_NUMBER = LossNotes(), ProductNotes(), NumberNotes()


@dataclass(frozen=True, kw_only=True, slots=True)
class CallNotes:
    """What was measured of one call of a public function."""

    value: float | None = None
    """What it gave, where that learns and is a single number; NaN for a loss of several."""
    slope: float | None = None
    """The derivative of what is differentiated with respect to its output, where that is one number
    for all samples."""
    loss: LossNotes = _NO_LOSS
    labels: LabelNotes | None = None
    all_labels: AllLabels | None = None
    constant: ConstantNotes | None = None
    blanks: BlankNotes | None = None
    pairs: PairNotes | None = None
    paired_by_labels: bool | None = None
    """Of a comparison of a batch's labels with each other: each sample has one other with its
    label. False where none has."""
    class_dimension: int | None = None
    """The dimension of the classes, of labels of 0 and 1 beside scores of their shape."""
    lookup: LookupNotes | None = None
    largest_dimension: int | None = None
    """Of a softmax, the largest size of its dimension in all batches so far."""
    mask: MaskNotes | None = None
    """Of attention, or of the softmax of one that is written by hand."""
    activation: int | None = None
    """Which of the step's activations it is, counted from 1."""
    product: ProductNotes = _NO_PRODUCT
    scaled: Range | None = None
    """Of what an addition or multiplication of one tensor and a number gave, without a gradient."""
    read: ReadNotes | None = None
    misread_edges: int | None = None
    """How many edges of a graph were read row by row from a list of pairs."""
    same: bool = False
    """A difference of two equal tensors, of which one learns and the other doesn't."""
    number: NumberNotes = NO_NUMBER
    written: int | None = None
    """Of a call in place, how often its first tensor had been written to before."""
    overwritten: bool = False
    """Parts of its output were assigned to later: `x[i] = y`."""
    seed: float | None = None
    """Of a call that drew the first numbers since a generator was seeded, the seed."""


NOTHING = CallNotes()
"""The notes of a call of which nothing was measured."""


class Draft:
    """The notes of a call while its step runs: some follow later."""

    __slots__ = ("notes",)

    def __init__(self, notes: CallNotes) -> None:
        self.notes = notes


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedRows:
    """Rows of the scores, or of the mask, that a softmax or an attention is given."""

    rows: int
    fully_masked: int
    """How many of them are -inf everywhere."""
    along: int | None = None
    """A later axis of the scores than the softmax's, along which none would be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptTargets:
    """The targets of a negative log-likelihood."""

    targets: int
    kept: int
    """How many of them are not `ignore_index`."""
    ignore_index: int
    weight: float | None = None
    """The sum of the class weights of those kept; None without class weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CtcLengths:
    """The lengths that a CTC loss is given."""

    targets: int
    """How many samples there are."""
    too_long: int
    """How many of them have more labels than frames."""
    first: tuple[int, int, int] | None = None
    """(position, frames, labels) of the first sample that has."""
    tight: int = 0
    """How many have too few frames for a blank between any two labels. 0 where some are too
    long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Divisor:
    """What a variance or a standard deviation divides by: `count - correction`."""

    count: int
    correction: float


OpNotes = MaskedRows | KeptTargets | CtcLengths | Divisor
