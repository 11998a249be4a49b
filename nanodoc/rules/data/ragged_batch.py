"""## What it checks
An exception while a batch is collated. The samples of that batch are drawn once more, one by one,
and compared field by field; if padding the shorter ones with zeros would help, the step is run with
the padded batch.

## Why it matters
The message names two shapes but no field and no sample; with worker processes not even the batch.

## Example
    RuntimeError: stack expects each tensor to be equal size, but got [1, 5] at entry 0 and [2, 5]
    at entry 1

## Fix
    def collate(samples):
        images, boxes = zip(*samples)
        return torch.stack(images), torch.nn.utils.rnn.pad_sequence(boxes, batch_first=True)

## See also
ND205 fully-masked-softmax (what padded rows can lead to), ND708 loader-worker-died
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.crash import FieldFacts, RaggedFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure_kinds import is_ragged
from nanodoc.rules.crash.failure_claims import failure_claim
from nanodoc.rules.data.padding import collate_for

_SHOWN = 8


@rule(
    "ND104",
    "ragged-batch",
    "critical",
    "samples that the collate function cannot stack",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    ragged = evidence.crash.ragged if evidence.crash is not None else None
    if failure is None or (ragged is None and not is_ragged(failure)):
        return
    if ragged is not None:
        yield _compared(rule, evidence, ragged)
    # where its samples were looked at, they do not differ
    elif evidence.crash is None or not evidence.crash.indices:
        yield _unseen(rule, evidence)


def _unseen(rule: Rule, evidence: Evidence) -> Claim:
    """The claim on samples that could not be drawn again."""
    claim = failure_claim(
        rule,
        evidence,
        title="the samples of a batch do not fit together",
        specificity=Specificity.FAMILY,
        explanation="The loader could not collate its samples. Which of them differ is unknown (an "
        "iterable data set, loader workers, or samples that change when they are drawn again).",
    )
    culprit = replace(
        claim.finding.culprit,
        kind="data",
        location=claim.finding.culprit.location or evidence.data_site,
    )
    return replace(claim, finding=replace(claim.finding, culprit=culprit))


def _compared(rule: Rule, evidence: Evidence, ragged: RaggedFacts) -> Claim:
    """The claim on samples that were drawn again and differ."""
    fields = [field for field in ragged.fields if field.ragged]
    worst = fields[0]
    odd = _odd_samples(worst)
    named = f"field {worst.path} of the samples" if worst.path else "the samples"
    claim = failure_claim(
        rule,
        evidence,
        title=f"{named} differ{'s' if worst.path else ''} in "
        f"{'shape' if all(isinstance(size, tuple) for size in worst.sizes) else 'kind'} and "
        "cannot be stacked",
        explanation=_explanation(ragged, worst, odd[0]),
        fixes=_fixes(ragged, worst),
        specificity=Specificity.SPECIAL,
        extra=_sizes(ragged, fields, odd),
    )
    own = claim.finding.culprit.location if ragged.own_collate else None
    culprit = Culprit(
        kind="data",
        op="stack",
        batch_path=f"batch{worst.path}",
        samples=odd,
        dataset_indices=tuple(ragged.indices[i] for i in odd),
        location=own or ragged.loader_at or claim.finding.culprit.location,
    )
    experiments: tuple[dict[str, str | float | None], ...] = ()
    if ragged.padded is not None:
        outcome = "the step runs" if ragged.padded == "runs" else f"the step raises {ragged.padded}"
        experiments = (
            {"name": "the field padded with zeros", "outcome": outcome, "loss": ragged.padded_loss},
        )
    sure = confidence(0.8, 0.5, 0.4 if culprit.location is not None else 0.0)
    return replace(
        claim,
        finding=replace(
            claim.finding, culprit=culprit, confidence=sure, experiments=experiments, phase="data"
        ),
    )


def _explanation(ragged: RaggedFacts, worst: FieldFacts, first: int) -> str:
    """How sample `first` differs from the others."""
    sizes = Counter(worst.sizes)
    usual, others = sizes[worst.usual], len(worst.sizes) - sizes[worst.usual]
    whose = "most others have" if usual > others else f"{usual} others have"
    return (
        f"Sample {first} of the batch (data set {ragged.indices[first]}) has "
        f"{_shown(worst.sizes[first])} where "
        f"{whose if usual > 1 else 'sample 0 has'} "
        f"{_shown(worst.usual if usual > 1 else worst.sizes[0])}. "
        + (
            "The collate function stacks"
            if ragged.own_collate
            else "The loader's default collate stacks"
        )
        + " samples, which needs equal shapes."
    )


def _sizes(
    ragged: RaggedFacts, fields: list[FieldFacts], odd: tuple[int, ...]
) -> list[tuple[str, str]]:
    """The sizes in each field that differs, and those of the odd samples in the first such
    field."""
    found = [
        (
            "field",
            f"{field.path or 'the sample'}: "
            + ", ".join(
                f"{_shown(size)} ×{number}" for size, number in Counter(field.sizes).items()
            ),
        )
        for field in fields[:4]
    ]
    shown = ", ".join(
        f"{i} (data set {ragged.indices[i]}) {_shown(fields[0].sizes[i])}" for i in odd[:_SHOWN]
    )
    found.append(("samples", shown))
    if ragged.made_at is not None:
        found.append(("samples come from", ragged.made_at.place))
    return found


def _odd_samples(field: FieldFacts) -> tuple[int, ...]:
    """Those unlike the majority, where there is one; else those unlike the first."""
    most = Counter(field.sizes).most_common(2)
    if most[0][1] > len(field.sizes) / 2:
        return tuple(i for i, size in enumerate(field.sizes) if size != most[0][0])
    return field.odd


def _fixes(ragged: RaggedFacts, worst: FieldFacts) -> Iterable[Fix]:
    sizes = [size for size in worst.sizes if isinstance(size, tuple)]
    if len(sizes) < len(worst.sizes):
        yield Fix(
            title=f"give every sample the same kind of value in {worst.path or 'its place'}, or "
            "leave the field out of the batch",
            confidence="likely",
        )
        return
    images = worst.images
    if images and len({size[0] for size in sizes}) > 1 and len({size[1:] for size in sizes}) == 1:
        yield Fix(
            title="some images have a different number of channels: open all in the same mode, "
            'such as Image.open(path).convert("RGB")',
            confidence="likely",
        )
        return
    if images:
        yield Fix(
            title="images of different sizes: resize or crop them in the data set's transform "
            "(transforms.Resize((h, w)))",
            confidence="likely",
        )
        return
    runs = (
        ragged.padded == "runs"
        and ragged.padded_loss is not None
        and ragged.padded_loss - ragged.padded_loss == 0
    )
    patch = collate_for(ragged)
    if ragged.own_collate:
        yield Fix(
            title="pad in your collate function: torch.nn.utils.rnn.pad_sequence(tensors, "
            "batch_first=True)",
            confidence="likely",
        )
    elif len({len(size) for size in sizes}) == 1:
        whose = (
            "a collate function that pads with zeros: DataLoader(..., collate_fn=collate)"
            if patch
            else "write a collate function that pads with zeros"
        )
        yield Fix(
            title=f"{whose}; where 0 has a meaning (labels), pad with a value that is ignored, "
            "such as -100" + ("" if runs else "; check what reads the padding"),
            patch=patch,
            verified=runs if ragged.padded is not None else None,
            confidence="likely",
            outcome="the step runs with the padded batch" if runs else "",
        )
    yield Fix(
        title="or keep the field as a list: a collate function that does not stack it",
        confidence="maybe",
    )


def _shown(size: tuple[int, ...] | str) -> str:
    return str(list(size)) if isinstance(size, tuple) else "nothing" if size == "missing" else size
