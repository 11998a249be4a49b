"""What `nanodoc explain` prints for the rules about what does not learn."""

_LOOKED = (
    "When the run is over its last batch and up to three earlier ones are run once more with the "
    "weights it ended with."
)

DOCS = {
    "ND602": """\
## What it checks
The gradient norms of the layers' weights, as the median over all steps. A finding needs a norm at the first layers below a thousandth of
that at the last ones, and a steady fall in between (embeddings left out); or gradients below 1e-7 in half of the layers, where the loss has
not come down.

## Why it matters
The first layers stay random; the last ones learn from noise.

## Example
    nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Sigmoid())])

## Fix
ReLU-like activations, residual connections, normalisation.

## Options
None.

## See also
ND604 saturated-activations, ND306 gradient-underflow
""",
    "ND603": f"""\
## What it checks
Units that ReLU or its kin returns as exactly 0 for every sample. {_LOOKED} A warning when more than half of a layer's units are dead;
critical when all are, or when a class of a classifier's output is.

## Why it matters
Where ReLU's input is negative its derivative is 0. A unit that is negative for every sample never changes again.

## Example
    return F.relu(self.head(x))     # logits that cannot go below zero

## Fix
No activation on the output; a lower learning rate; LeakyReLU.

## Options
None.

## See also
ND604 saturated-activations, ND618 collapsed-output
""",
    "ND604": f"""\
## What it checks
The share of a hidden sigmoid's or tanh's outputs where its derivative is below 0.01, more than half for a warning. {_LOOKED} Outputs of the
model and gates (sigmoids that are multiplied with something) are left out: they may saturate on purpose.

## Why it matters
The gradient behind it is a hundredth of what it was, for each such layer.

## Example
    nn.init.normal_(layer.weight, std=1.0)      # 256 inputs: pre-activations of ±16

## Fix
Normalised inputs, smaller weights (xavier_uniform_).

## Options
None.

## See also
ND602 vanishing-gradients
""",
    "ND605": """\
## What it checks
Parameters whose values are bitwise those of step 0 although they get gradients, an optimizer holds them and no learning rate was zero.
`--stats` prints the update ratio |Δw|/|w| of each; healthy values lie between 1e-5 and 1e-1.

## Why it matters
In bfloat16 a weight of 1.0 changes by 0.008 or not at all: small updates are rounded away, step after step.

## Example
    model = model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

## Fix
Weights in float32 under autocast, or an optimizer with master weights.

## Options
None.

## See also
ND506 parameter-not-in-optimizer, ND609 learning-rate-range
""",
    "ND607": """\
## What it checks
A cross entropy that stays within 2 % of ln C, what guessing among C classes costs, for a whole run of at least 30 steps outside of a
warm-up. Then one batch alone is trained on for some steps, at ten times the learning rate too, and everything put back: a model whose loss
comes down by a fiftieth there is only slow, and is left alone.

## Why it matters
Something between inputs, labels and loss is not connected.

## Fix
See what else is reported; then try the learning rate.

## Options
None.

## See also
ND617 cannot-overfit-one-batch
""",
    "ND610": """\
## What it checks
Weights whose rows are equal, up to rounding, when the run ends, although they have moved.

## Why it matters
Units that begin alike get equal gradients and stay alike: the layer is as good as one unit.

## Example
    nn.init.constant_(layer.weight, 0.01)

## Fix
Random initial values.

## Options
None. A matrix that starts at zero behind a random one (LoRA's B) is no such case: its rows part at once.

## See also
ND611 initial-loss
""",
    "ND611": """\
## What it checks
The first cross entropy against ln C. At twice ln C and above it is reported: as an info, or as a warning if it has not come down to ln C
by the end of the run.

## Why it matters
The model begins sure of wrong answers and spends its first steps unlearning them.

## Example
    nn.init.normal_(self.head.weight)      # logits of ±16

## Fix
Smaller weights in the last layer, normalised inputs.

## Options
None.

## See also
ND610 poor-initialisation
""",
    "ND617": """\
## What it checks
Only with `--overfit-batch`: the run trains on its first batch alone, for 50 steps and more. The loss must fall to less than half, if not as
it is then at ten times the learning rate. Then the same steps are made
from the same weights with the inputs zeroed (where inputs and targets can be told apart): the loss must end higher than with them.

## Why it matters
What cannot fit one batch will not fit a data set. What fits it without its inputs has not learnt from them.

## Example
    nanodoc run train.py:build --overfit-batch --steps 200

## Fix
A learning rate ten times larger or smaller; then follow the gradient: `nanodoc check-grad-graph`.

## Options
`--steps`.

## See also
ND607 loss-not-decreasing, ND501 cut-graph
""",
    "ND618": f"""\
## What it checks
Whether the model's output is the same for all samples of a batch whose inputs differ. {_LOOKED}

## Why it matters
The model has become a constant.

## Fix
It is usually the effect of something else in the report: dead or saturated layers, a softmax over the batch.

## Options
None.

## See also
ND603 dead-units, ND604 saturated-activations
""",
    "ND621": """\
## What it checks
A loss that is bitwise the same in every step (of at least ten) while every gradient is exactly zero.

## Why it matters
There is nothing to learn from. cross_entropy over a single class is the classic.

## Example
    loss = F.cross_entropy(model(x), y)      # model(x) is (64, 1)

## Fix
    loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y.float())

## Options
None. A hinge loss that is zero on some batches is fine.

## See also
ND501 cut-graph, ND603 dead-units
""",
    "ND625": """\
## What it checks
BatchNorm layers in training mode with momentum 0.

## Why it matters
Training looks right; in eval mode the layer normalises by statistics that are still mean 0 and variance 1.

## Example
    nn.BatchNorm2d(64, momentum=0.0)

## Fix
    nn.BatchNorm2d(64)       # 0.1: the share of the new value

## Options
None.

## See also
ND613 wrong-mode
""",
    "ND629": """\
## What it checks
A regression loss on the output of ReLU, sigmoid, tanh or softmax, and targets of which a tenth or more lie outside of its range.

## Why it matters
The model is pushed into the flat part of its last activation, and stays there.

## Example
    return torch.sigmoid(self.head(x))        # targets up to 40

## Fix
No activation on the output of a regression, or scaled targets.

## Options
None.

## See also
ND603 dead-units
""",
}
