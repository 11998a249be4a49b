"""What `nanodoc explain` prints for the rules about what is wired to the loss."""

DOCS = {
    "ND111": """\
## What it checks
A regression loss, or a difference or product on the way to the loss, whose two sides have shapes such as (N, 1) and (N,): they
broadcast to (N, N). Seen in the calls of one step, run once more when the run is over.

## Why it matters
Every prediction is compared with every target. The loss falls to the variance of the targets and stays there; torch gives a warning at
most.

## Example
    prediction = model(x)                 # (64, 1)
    loss = F.mse_loss(prediction, y)      # y is (64,)

## Fix
    loss = F.mse_loss(prediction.squeeze(-1), y)

## Options
None. A difference written as `a[:, None] - b` in one line is taken for what it says: all pairs.

## See also
ND612 double-softmax
""",
    "ND612": """\
## What it checks
The output of a softmax or sigmoid that reaches, through nothing but views and copies, a loss that applies it itself (cross_entropy,
binary_cross_entropy_with_logits), or one that wants logarithms (nll_loss, kl_div). log_softmax before cross_entropy is harmless.

## Why it matters
Probabilities as logits differ by 1 at most: with C classes the loss cannot fall below ln(C − 1 + e) − 1. Training looks slow, and ends
early.

## Example
    def forward(self, x):
        return F.softmax(self.head(x), dim=1)
    ...
    loss = F.cross_entropy(model(x), y)

## Fix
Return `self.head(x)`; apply softmax where probabilities are read.

## Options
None.

## See also
ND303 log-of-softmax, ND620 singleton-softmax
""",
    "ND620": """\
## What it checks
A softmax on the way to the loss over a dimension of size 1 that a layer with a single output made. Attention over a single key is left
alone.

## Why it matters
softmax of one number is 1. Attention weights are all equal, a classifier always answers 1, and the layers before get a zero gradient.

## Example
    scores = self.score(h)                    # (batch, time, 1)
    weights = torch.softmax(scores, dim=-1)   # all ones

## Fix
    weights = torch.softmax(scores, dim=1)    # over time

## Options
None.

## See also
ND612 double-softmax, ND501 cut-graph
""",
    "ND627": """\
## What it checks
nll_loss whose first argument holds values above 0.1: no probability has a positive logarithm.

## Why it matters
nll_loss applies no softmax. On raw outputs it has no lower bound; the outputs grow and the loss falls for ever.

## Example
    loss = F.nll_loss(model(x), y)

## Fix
    loss = F.cross_entropy(model(x), y)

## Options
None.

## See also
ND612 double-softmax, ND606 divergence
""",
}
