"""What running some of the last batches once more showed. Like `evidence`: plain, frozen, without
torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.ops import OpFacts
from nanodoc.facts.policy import PushedFacts, ReturnFacts, TransitionFacts
from nanodoc.facts.source import SourceSpan


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitFacts:
    """The units of one activation, over all batches that were looked at."""

    call: CallFacts
    units: int
    dead: int
    """Zero for every sample of every batch (ReLU and its kin)."""
    saturated: float
    """Share of the values in the flat part (sigmoid, tanh)."""
    values: int
    """How many values were looked at."""
    output: bool = False
    """The loss is made of this activation directly, with no layer in between."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputFacts:
    """What the model returned for its last batch."""

    batch_size: int
    spread: float
    """Largest difference between two samples' outputs, relative to the largest output."""
    inputs_differ: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelFacts:
    """The class labels that reached the losses of one step."""

    step: int
    samples: int
    """Of the batch; labels of one sample (of its pixels, of its frames) belong together."""
    only: int | None
    """The one class they all are; None where there are several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairingFacts:
    """One loss function's loss on its predictions and their targets, and on the same predictions
    with the targets of other samples."""

    function: str
    location: SourceSpan | None
    samples: int
    own: float
    others: float
    """The mean over a few orders of the targets."""

    @property
    def learnt(self) -> bool:
        """The predictions fit their own targets better than those of others."""
        return self.own < _AS_GOOD * self.others


_AS_GOOD = 0.95
"""Times the loss on other samples' targets: batches differ by less."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedForFacts:
    """A part of the batch that a network is shown in part, and a loss that asks for nothing of what
    is hidden. Shares are of its elements."""

    hidden: float
    asked: float
    location: SourceSpan | None
    """The first call behind the network that takes a mask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleTermFacts:
    """A term of a loss whose gradients are cleared before an optimizer steps with them."""

    call: int
    """The position of the call that made it."""
    reaches: int
    """How many parameters its gradients come to,"""
    reached: str | None
    """and the name of one of them."""
    trained: int
    """How many parameters are stepped with gradients of the loss's other terms."""
    cut: int
    """The position of the call that ends its gradients on the way to these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UntrainedFacts:
    """Parameters of an optimizer of which each gradient is cleared before it steps."""

    loss: int
    """The position of the call that made the loss with which the optimizer steps."""
    names: tuple[str, ...]
    trained: int
    """How many other parameters it steps with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreadRowsFacts:
    """Samples that the loss does not read, at the same places of each batch."""

    taken: CallFacts
    """The call that takes the part which the loss reads."""
    rows: int
    read: int
    steps: int
    """In so many of the last steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PulledApartFacts:
    """Parameters that two optimizers hold, over the last steps."""

    optimizers: tuple[int, int]
    """Their places in the recipe."""
    held: tuple[int, int]
    """How many parameters each of them holds."""
    shared: int
    """How many both hold."""
    cosines: tuple[float, ...]
    """Of each step, between the gradients that these have when either optimizer steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsApart:
    """Two values that a step combines row by row, and that hold rows of different samples."""

    combined: str
    """The call that combines them."""
    at: SourceSpan | None
    taken: str
    """The call that took the rows of one of them in an order of its own."""
    number: int
    """How many calls of that name came before, in the step."""
    taken_at: SourceSpan | None
    usual_at: SourceSpan | None
    """Where the rows of the other one were taken; None where they are those of the batch."""
    rows: int
    parts: int
    """How many parts of the data are in the order of the other one."""
    sure: bool
    """Else the same steps without that call can tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectionFacts:
    """What running some of the last batches once more showed, with the weights the run ended
    with."""

    step: int
    """The last one."""
    calls: StepCalls = field(default_factory=StepCalls)
    batches: int = 0
    units: tuple[UnitFacts, ...] = ()
    output: OutputFacts | None = None
    modes: tuple[ModeFacts, ...] = ()
    still_dropping: tuple[int, ...] = ()
    """Positions of the calls that dropped values as well when the model was in eval mode."""
    discarded: tuple[int, ...] = ()
    """Positions of the calls in the user's code whose results nothing can read."""
    lost_updates: tuple[SourceSpan, ...] = ()
    """Lines of loops over parameters that compute a new value of one and throw it away."""
    still: tuple[StillFacts, ...] = ()
    """Networks in training mode that the step asks, and does not train."""
    maximised: bool = False
    """An optimizer climbs (`maximize=True`)."""
    training: bool = True
    """The model as a whole was in training mode when such a layer ran."""
    labels: tuple[LabelFacts, ...] = ()
    """Of each step looked at whose loss takes class labels."""
    sequence: SequenceFacts | None = None
    """Of a step whose labels are tokens of its inputs."""
    padding: PaddingFacts | None = None
    """Of a step with padded sequences."""
    pairings: tuple[PairingFacts, ...] = ()
    """Of each call of a loss function whose targets could be exchanged."""
    asked_for: AskedForFacts | None = None
    returns: ReturnFacts | None = None
    """Of a step that weights the log-probabilities of actions."""
    transitions: TransitionFacts | None = None
    """Of a step whose targets read next states."""
    idle_term: IdleTermFacts | None = None
    """Of a loss one of whose terms trains nothing."""
    untrained: UntrainedFacts | None = None
    """Of a step in which an optimizer steps without the gradients of some of its parameters."""
    pulled_apart: PulledApartFacts | None = None
    """Of parameters that two optimizers hold."""
    unread_rows: UnreadRowsFacts | None = None
    """Of steps that take a part of a batch by its position."""
    pushed: PushedFacts | None = None
    """Of a step that takes clamped values further out of their bounds."""
    labels_at: SourceSpan | None = None
    """The line that makes what the first loss compares with."""
    loss_by_hand: SourceSpan | None = None
    """The user's own first loss of class labels, where it takes a part `labels` of the batch."""
    weights_at: SourceSpan | None = None
    """The line that makes the criterion with class weights."""
    criterion_at: SourceSpan | None = None
    """The line that makes the object of a library that computes the loss."""
    ignoring_at: SourceSpan | None = None
    """Where the criterion was told which label to ignore."""
    edges_at: SourceSpan | None = None
    """The only line of the user's that reshapes to two rows, of a step with misread edges."""
    misread_edges: int | None = None
    """How many edges a graph of the batch has that was read row by row from a list of pairs."""
    reshaped_pairs_at: SourceSpan | None = None
    """Where the edges of a graph, given as pairs, are reshaped to two rows."""
    unmoved: tuple[UnmovedFacts, ...] = ()
    """Networks that the step asks, and that are as they were in the first."""
    shared: tuple[UnmovedFacts, ...] = ()
    """Networks that the step asks, whose parameters are others than those that optimizers hold, and
    lie in the same memory."""
    pairs: PairFacts | None = None
    """Of a step whose loss pairs the samples of its batch."""
    stale_averages: tuple[StaleAverage, ...] = ()
    """Averages of the model whose batch norms are as they were made."""
    rows_apart: RowsApart | None = None
    swapped_flags: SourceSpan | None = None
    """The line that unpacks what an environment's step gives, its two flags in the wrong order."""
    alias_at: SourceSpan | None = None
    """The only line that gives the model a further name, which the step reads."""
    remembered_at: SourceSpan | None = None
    """The only line that gives a memory the states before and behind a step of an environment."""
    node_masks: tuple[dict[str, int], int] | None = None
    """How many nodes each of the disjoint masks of the step's only graph marks, and of how many."""
    augmented: AugmentedApart | None = None
    redrawn: tuple[int, ...] = ()
    """Positions of the random draws that follow the same seed in all steps that were looked at."""
    seeded_at: SourceSpan | None = None
    """The line before them that seeds their generator, where it stands in the same function."""
    shuffled: ShuffledApart | None = None
    likelihood: MinimisedLikelihood | None = None
    swapped_pairs: SwappedPairs | None = None
    objective: WeighedData | None = None
    """An object that computes the loss and was told how many samples there are."""
    equal: EqualFacts | None = None
    large: LargeFacts | None = None

    @property
    def learnt_nothing(self) -> bool:
        """No loss is lower than with the targets of other samples; False where none could be
        asked."""
        return bool(self.pairings) and not any(one.learnt for one in self.pairings)

    @property
    def unlearnt(self) -> PairingFacts | None:
        """The first loss that is as low with the targets of other samples."""
        return next((one for one in self.pairings if not one.learnt), None)

    mask_at: SourceSpan | None = None
    """The line that makes the part of the batch that is a mask of padded ids."""
    causal_mask_at: SourceSpan | None = None
    """The line that makes the mask of the first attention that has one."""
    model_called_at: SourceSpan | None = None
    """The line that gives the model its inputs."""
    reader_at: SourceSpan | None = None
    """The line that makes a library's module whose attention reads later tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EqualFacts:
    """The op of the last step from which on the predictions are equal along an axis."""

    call: int
    """Position of the loss that was given them."""
    axis: int
    """Of its predictions."""
    size: int
    op: OpFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class LargeFacts:
    """What made the loss of the last step huge."""

    op: OpFacts
    """The op that made values so large, or the first to read what came into the step like that."""
    name: str
    """What came so: "constant" for a tensor that was made before the step, or a buffer's name; ""
    where the op made the values."""
    largest: float
    """|value|"""
    made_at: SourceSpan | None = None
    """The line of the user's code where values of what came were first so large, or that made the
    factor by which a line multiplied them again and again."""
    variable: str = ""
    """What held these there."""
    grown_at: SourceSpan | None = None
    """That line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AugmentedApart:
    """Images and masks of a batch that modules in the step turned each in its own way."""

    samples: int
    """In which something was turned, as far as that can be told."""
    apart: int
    """Where the mask does not lie as its image."""
    drawn: bool = False
    """Not seen by comparing pictures: one module drew for the images and anew for the masks, and
    moved so many masks."""
    image_at: SourceSpan | None
    mask_at: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShuffledApart:
    """Inputs and labels that the source puts into different orders."""

    name: str
    other: str
    line: SourceSpan | None
    """Where the first was put into an order of its own."""
    other_line: SourceSpan | None
    """The same of the other; None where that stays as it was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SwappedPairs:
    """Pairs of nodes whose labels say of the edges of a graph that they are none."""

    pairs: int
    edges: int
    """Of the graph that the network reads."""
    line: SourceSpan | None
    """Where the labels are put together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MinimisedLikelihood:
    """A log-likelihood that the step has for its loss, as it is."""

    objective: str
    """Its class."""
    line: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WeighedData:
    """An objective that takes the batch for a part of so many samples."""

    objective: str
    """Its class."""
    told: int
    samples: int
    """Of the data set."""
    batch_size: int | None
    line: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PairFacts:
    """How near the samples of a batch are to those that a contrastive loss pairs them with, and to
    those of the usual orders: the mean share of the others of that one's half of the batch that are
    farther, 0.5 for strangers.
    With the weights of the last step, or those of the first where one order shows better there."""

    call: int
    """The position of the loss, or of the comparison of its labels with each other."""
    samples: int
    wanted: float
    in_halves: float
    """Of samples half a batch apart."""
    side_by_side: float
    """Of the two of neighbours."""
    same: bool = False
    """The two of each pair that is wanted are one and the same."""
    repeated_at: SourceSpan | None = None
    """The only line of the user's that gives one value several times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleAverage:
    """A network beside the model whose weights follow it, and whose running statistics do not."""

    name: str
    layers: int
    layer_type: str
    averaged_at: SourceSpan | None
    """The user's line that goes through both networks' parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmovedFacts:
    """A network without a parameter that an optimizer holds, and that nothing has written into."""

    module_type: str
    first: int
    """The position of the first call inside of it."""
    last: int
    """Behind the last one."""
    asked_at: SourceSpan | None
    """The user's line that calls it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StillFacts:
    """A network without a parameter that learns, asked in training mode."""

    module_type: str
    layers: tuple[str, ...]
    """The types of its layers that behave otherwise in training: dropout, batch norm."""
    asked_at: SourceSpan | None
    """The user's line that calls it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixingFacts:
    """The first call of a step whose result for one position depends on a later token."""

    name: str
    at: SourceSpan | None
    clean: frozenset[SourceSpan | None] = frozenset()
    """Lines of products and attentions before it whose results were seen not to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceFacts:
    """Labels that are tokens of their own inputs."""

    distance: int
    """How many positions after its own the input lies that each label is: 1 for the next token, 0
    where the label is the very token that is read there."""
    positions: int
    """Of a sequence."""
    labels: int
    """How many were compared."""
    reads_later: int
    """At how many of two positions the scores depend on an input after their own; -1 where that
    could not be told."""
    mixing: MixingFacts | None = None
    """Where reading later tokens begins, as far as that could be measured."""
    at: SourceSpan | None = None
    """The loss's line."""
    ignored: int = -100
    """The label that stands for none."""
    unasked_end: EndFacts | None = None
    prompts: PromptFacts | None = None
    left_out_at: SourceSpan | None = None
    """The line that takes tokens out of the labels, or makes what does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndFacts:
    """Sequences whose last token is that of the padding, and never a label."""

    value: int
    """The token."""
    rows: int
    """How many sequences end with it."""
    of: int
    """How many there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptFacts:
    """Sequences of which all labels stand at the beginning, and none behind."""

    rows: int
    """How many there are."""
    asked: float
    """Share of their tokens up to the last label."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddingFacts:
    """What predictions of padded sequences depend on."""

    value: int
    """The id that stands for padding."""
    share: float
    """Of all ids."""
    rows: int
    """How many sequences were looked at."""
    reads_padding: int
    """At how many of them the prediction depends on the padding."""
    ignores_tokens: int
    """At how many of them it depends on no token but the first, the last and its own."""
    read_at_end: int = 0
    """How many are predicted from a recurrent layer's output behind the last padding alone."""
    behind: int = 0
    """Paddings behind the last token, the median of those."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeFacts:
    """A module that behaves otherwise in training (dropout, batch norm), as it was when forward
    ran."""

    module: str
    module_type: str
    training: bool
    trainable: bool
    """Some parameter of the module that a dropout belongs to learns; a batch norm's own, or what is
    before it."""
    momentum: float | None = None
    """Of a BatchNorm with running statistics."""
    untouched: bool = False
    """Its running statistics are still mean 0 and variance 1."""
    eval_at: SourceSpan | None = None
    """Where it was put into eval mode by itself, or in a frozen part; the next took that back."""
    train_at: SourceSpan | None = None
    made_at: SourceSpan | None = None
