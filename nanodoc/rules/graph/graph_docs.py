"""The texts of ND401, ND501, ND502, ND505 and ND509."""

NO_INF_DOC = """\
## What it checks
"AssertionError: No inf checks were recorded for this optimizer." GradScaler.step() looks at the gradients of one optimizer's
parameters, and there was not one. The step is run again with its gradients followed, to find out why.

## Why it matters
The message names neither parameter nor line. The scaler is not to blame: the graph is cut before these parameters, they
are not used in this step, or the optimizer holds tensors that the model no longer has.

## Example
    return torch.as_tensor(predictions)      # a list of tensors becomes a tensor without a graph

## Fix
As for the cut that is reported: keep the values tensors (`torch.stack(predictions)`), take trainable layers out of no_grad
regions. Where an optimizer is only used on some steps, call `scaler.step()` for it only on those.

## Options
None.

## See also
ND501 cut-graph, ND509 no-grad-region, ND507 stale-optimizer
"""

CUT_DOC = """\
## What it checks
Trainable parameters that an optimizer holds and that get no gradient in any step although the loss depends on them. Values are
followed from the parameters to the loss through every op, through Python numbers and NumPy arrays too; the first op whose
input carries gradient and whose output should but doesn't is named: detach, .data, .item(), float(), tolist(), .numpy(),
torch.tensor or torch.as_tensor of tensors, argmax, comparisons, integer casts, rounding, in-place writes behind autograd's
back, a custom autograd function that returns None.

## Why it matters
The parameters stay at their initial values, often without any error: the loss even falls, as far as the rest of the model
can do without them.

## Example
    coordinates = torch.argmax(scores, dim=1).float()
    loss = F.l1_loss(coordinates, target)

## Fix
Compute the loss on tensors that carry their graph: logits instead of argmax, `torch.stack` instead of `torch.tensor`, torch instead of
NumPy. Wrapping the loss in a new tensor with requires_grad=True silences the error for ever and trains nothing.

Cuts on purpose are not reported: targets, teachers kept as averages, discriminator steps, straight-through estimators, as
long as every trainable parameter gets its gradient some other way.

## Options
None.

## See also
ND509 no-grad-region, ND502 loss-without-grad, ND505 unused-parameter, ND401 no-inf-checks
"""

NO_LOSS_DOC = """\
## What it checks
A loss that requires no gradient although nothing on its way was cut: it depends on no trainable parameter, or gradients were
switched off for good before training began.

## Why it matters
backward() raises "element 0 of tensors does not require grad and does not have a grad_fn". Making the loss require gradient silences
that and trains nothing.

## Example
    torch.set_grad_enabled(False)      # left over from evaluation

## Fix
Compute the loss from the model's output; switch gradients off in a `with` block.

## Options
None.

## See also
ND501 cut-graph, ND508 unexpectedly-frozen
"""

UNUSED_DOC = """\
## What it checks
Trainable parameters handed to an optimizer that no op reads in any step, or whose results the loss does not depend on. Reported
as information (unused heads and experts are common), as a warning where a fresh layer of the same kind is built in
forward in their place.

## Why it matters
They stay at their initial values, and DistributedDataParallel waits for their gradients.

## Example
    self.norm2 = nn.LayerNorm(d)      # forward() calls norm1 twice

## Fix
Use the layer, or remove it.

## Options
None.

## See also
ND501 cut-graph, ND516 layer-built-in-forward
"""

REGION_DOC = """\
## What it checks
Trainable layers, held by an optimizer, that run inside torch.no_grad(), torch.inference_mode(), torch.set_grad_enabled(False) or
a reentrant checkpoint none of whose inputs requires gradient, in every step. The line that opened the region is named.

## Why it matters
The layers never learn. A teacher whose weights are an average of another module's is not reported.

## Example
    with torch.no_grad():
        features = self.encoder(x)      # self.encoder.parameters() are in the optimizer

## Fix
Take the layers out of the region, or freeze them and leave them out of the optimizer.

## Options
None.

## See also
ND501 cut-graph, ND508 unexpectedly-frozen
"""
