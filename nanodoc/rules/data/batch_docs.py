"""What `nanodoc explain` prints for the rules about batches."""

DOCS = {
    "ND107": """\
## What it checks
Floating parts of the batch that go straight into a linear, convolutional or recurrent layer without a normalisation right behind it, and
whose median sample has a mean beyond ±10 or a largest |x| above 50. The batches that are still there when the run ends are looked at (up
to eight).

## Why it matters
Layers are initialised for inputs around 0 with a deviation of 1. Raw columns saturate activations and make the first updates huge.

## Example
    x = torch.tensor(frame.values)       # incomes, years, counts

## Fix
    x = (x - mean) / std

## Options
None. An input that goes through a normalisation layer first is left alone, and so is a single sample that is far off.

## See also
ND606 divergence, ND604 saturated-activations
""",
    "ND108": """\
## What it checks
Successive batches of a loader that are equal to the last bit although each was made anew; and an input that is one and the same value
everywhere, in every batch.

## Why it matters
The model learns one batch by heart.

## Example
    batch = next(iter(loader))      # in every step

## Fix
    for batch in loader: ...

## Options
None. Data given as a list with a single batch, or one batch per pass, is taken for intended.

## See also
ND109 class-imbalance
""",
    "ND109": """\
## What it checks
How often the classes occur among a batch's targets: more than 10 : 1, with at least five of the rarest.

## Why it matters
Always answering the frequent class is a good first answer; accuracy will not show it.

## Fix
Class weights or sampling by class.

## Options
None.

## See also
ND110 padding-dominated
""",
    "ND110": """\
## What it checks
Token ids whose rows end (or begin) in runs of one token. Critical: that token is more than half of the targets that the loss counts.
Warning: it is more than half of the ids and nothing masks it.

## Why it matters
The loss falls because padding is easy to predict.

## Example
    loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())     # pads included

## Fix
    loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=pad)

## Options
None.

## See also
ND105 all-targets-ignored, ND114 all-ones-mask
""",
    "ND112": """\
## What it checks
The share of the run's time spent waiting for the next batch, if it is more than half and at least 5 ms a step.

## Why it matters
The device idles.

## Example
    DataLoader(images, num_workers=0)

## Fix
num_workers, pin_memory, persistent_workers, less work per sample.

## Options
None.

## See also
ND108 constant-batch
""",
    "ND114": """\
## What it checks
A part of the batch shaped like the token ids that is 1 everywhere in every batch and is used, while the ids end in padding.

## Why it matters
The model attends to padding.

## Example
    mask = torch.ones_like(ids)

## Fix
    mask = ids != pad

## Options
None.

## See also
ND110 padding-dominated, ND205 fully-masked-softmax
""",
}
