"""The texts of ND306, ND405, ND406, ND408 and ND409."""

UNDERFLOW = """\
## What it checks
When a run with float16 is over, its last batch is run once more and every op that makes float16 values is repeated on float32
copies of its inputs. An element that is zero in float16 and not in float32 was flushed. Reported are parameters of whose
gradient more than half of the nonzero elements are flushed, if these make up more than a tenth of the gradient's norm.

## Why it matters
What is rounded to zero teaches nothing. With a healthy loss scale only a few per cent are lost (Micikevicius et al., Mixed
Precision Training, 2018); a large share means that the scale is too low, or that one module's gradients are tiny.

## Example
A scale that collapsed to 1 because another module overflows.

## Fix
Find out what keeps the scale low; run the module in float32; or use bfloat16.

## Options
None. A run whose loss has fallen below a hundredth of its start is not judged: its gradients are tiny because it is done.

## See also
ND405 half-without-scaler, ND402 collapsing-scale
"""

WITHOUT_SCALER = """\
## What it checks
float16 autocast without a GradScaler (or with one that is switched off), and parameters whose gradient float16 rounds to zero for
the larger part (see ND306). Without such a loss nothing is reported.

## Why it matters
float16 has no number between 0 and 6e-8. Gradients of a mean over many elements are often smaller, and the layers they belong
to silently stop learning.

## Example
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()

## Fix
    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()

or bfloat16, which needs no scaler.

## Options
None.

## See also
ND306 gradient-underflow
"""

PARAMETERS = """\
## What it checks
"ValueError: Attempting to unscale FP16 gradients." The parameters in float16 that an optimizer holds are listed, with the line that
made them so: `model.half()`, a layer built with dtype=torch.float16, or the parameter itself.

## Why it matters
Mixed precision keeps float32 parameters and casts them for each op. The error is raised at the first step, and its traceback
ends in torch.

## Example
    model = Net().half()
    scaler = torch.amp.GradScaler("cuda")

## Fix
Leave the parameters in float32; the autocast context does the rest.

## Options
None.

## See also
ND616 optimizer-made-nan
"""

NOT_APPLIED = """\
## What it checks
An enabled autocast context that a step enters, and not one op of the step whose result is in half precision: the context is for
another device type, or ends before the model is called, or everything inside it runs in float32.

## Why it matters
Neither the memory nor the speed of half precision, and results that differ from those of the machine where it is applied.

## Example
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x.cuda())

## Fix
Enter the context around the call of the model, for the device that the model is on.

## Options
None. Where the context's device is missing on this machine, this is only information.

## See also
ND405 half-without-scaler
"""

HEADROOM = """\
## What it checks
The largest float16 activation of each module, on the last step's batch: within a factor of 4 of 65504.

## Why it matters
It works now. A rare token, a larger batch or a hundred more steps may pass the end; the inf becomes NaN in the next norm.

## Example
A residual stream of 3e4.

## Fix
Run the module in float32 or the run in bfloat16. `nanodoc run --frames` prints every module's range.

## Options
None.

## See also
ND203 low-precision-overflow
"""
