"""What `nanodoc explain` prints for the rules about the loop's conduct."""

_SEEN = "The calls of a train_step are watched: which came, in which order, on which tensors."

DOCS = {
    "ND608": f"""\
## What it checks
An optimizer that steps on gradients which still hold those of its previous step. {_SEEN}

## Why it matters
backward() adds to .grad. Without zero_grad() each step applies the sum of all gradients since the start: the loss falls at first, then
swings and blows up.

## Example
    loss.backward()
    optimizer.step()          # and no zero_grad() anywhere

## Fix
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

## Options
None. Accumulating over micro-batches is fine as long as gradients are cleared after each optimizer step.

## See also
ND622 discarded-gradients, ND606 divergence
""",
    "ND613": """\
## What it checks
Whether dropout and batch norm layers whose neighbours learn were all in eval mode when the last step's forward ran, and which eval()
put them there: critical with batch norm among them, a warning where it is dropout only. Where the rest of the model trains as it should, only
batch norm layers whose running statistics are still mean 0 and variance 1. Parts that are frozen, or only some layers in eval mode, are taken for intended.

## Why it matters
The usual way in is a validation that calls model.eval() and no model.train() after it: regularisation is gone, running statistics
freeze.

## Example
    def validate(): model.eval(); ...
    for epoch in ...: train(); validate()      # train() never calls model.train()

## Fix
    model.train()

## Options
None.

## See also
ND625 frozen-statistics
""",
    "ND614": """\
## What it checks
A scheduler whose first step() came before any optimizer's. torch's own warning about it is evidence too.

## Why it matters
The first learning rate of the schedule is never used; a warm-up loses its first step.

## Example
    scheduler.step()
    optimizer.step()

## Fix
Call scheduler.step() after optimizer.step().

## Options
None.

## See also
ND609 learning-rate-range
""",
    "ND622": f"""\
## What it checks
Gradients that backward() made and zero_grad() took away before the optimizer stepped. {_SEEN}

## Why it matters
Nothing fails, and nothing is learnt.

## Example
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()

## Fix
Clear before backward() or after step().

## Options
None.

## See also
ND608 accumulating-gradients
""",
    "ND623": f"""\
## What it checks
Several backward() from one line before one optimizer step, none of whose losses was divided. A warning from four micro-batches on if the
loss has not come down, else an info. {_SEEN}

## Why it matters
The gradient is as many times larger as there are micro-batches, and with it the effective learning rate of SGD and what clipping does.

## Example
    for part in parts:
        loss_fn(model, part).backward()
    optimizer.step()

## Fix
    (loss_fn(model, part) / len(parts)).backward()

## Options
None.

## See also
ND608 accumulating-gradients
""",
    "ND624": f"""\
## What it checks
clip_grad_norm_ or clip_grad_value_ on gradients that the optimizer has already used. {_SEEN}

## Why it matters
The clipping has no effect; a run that needs it will blow up all the same.

## Example
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

## Fix
Clip between backward() and step().

## Options
None.

## See also
ND403 clip-before-unscale, ND601 exploding-gradients
""",
    "ND626": f"""\
## What it checks
An optimizer that keeps moments or momentum and has none when it steps, in step after step. {_SEEN}

## Why it matters
Adam without its moments moves every weight by the full learning rate; momentum never builds up.

## Example
    def train_step(model, batch):
        optimizer = torch.optim.Adam(model.parameters())

## Fix
Make it once; load its state when you resume.

## Options
None.

## See also
ND507 stale-optimizer
""",
    "ND628": """\
## What it checks
A train_step that differentiates and never calls an optimizer's step(), while no parameter moves otherwise.

## Why it matters
The loss only follows the batches.

## Example
    loss.backward()
    scheduler.step()

## Fix
    optimizer.step()

## Options
None.

## See also
ND622 discarded-gradients
""",
}
