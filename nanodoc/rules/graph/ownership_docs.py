"""The texts of the rules about ownership."""

DOCS = {
    "ND506": """\
## What it checks
Trainable parameters that get gradients and that no optimizer holds, and which nothing else moves during the run. Parameters of
modules that the loss function uses beside the model count too. Where all of them were loaded from a checkpoint during build() this is
information only: leaving a pretrained part out of the optimizer is a common way to keep it.

## Why it matters
They keep their initial values. The loss falls all the same, as far as the rest of the model can do without them.

## Example
    optimizer = torch.optim.AdamW(model.encoder.parameters())      # and the head?

## Fix
Hand them to the optimizer, or freeze them with requires_grad_(False).

## Options
None.

## See also
ND507 stale-optimizer, ND514 unregistered-module
""",
    "ND507": """\
## What it checks
An optimizer that holds tensors belonging to no module in sight, without a gradient, while parameters of the model are in no
optimizer: a layer was replaced, or the model copied, after the optimizer was made.

## Why it matters
The optimizer updates the old layer; the new one never learns.

## Example
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head = nn.Linear(512, classes)

## Fix
Make the optimizer after the last change to the model.

## Options
None.

## See also
ND506 parameter-not-in-optimizer
""",
    "ND508": """\
## What it checks
Models that are frozen as a whole although a training step is run, whose last layer is frozen at fresh values while earlier ones
train, or in which only normalisation layers train. A frozen backbone under a trained head is what freezing is for, and is not
reported.

## Why it matters
What is frozen by mistake never learns, and nothing says so.

## Example
    for name, p in model.named_parameters():
        p.requires_grad = "backbone" in name      # the wrong way round

## Fix
Freeze only what is meant to stay.

## Options
None.

## See also
ND502 loss-without-grad, ND517 ineffective-freeze
""",
    "ND514": """\
## What it checks
Modules and parameters that a module keeps in a plain list, tuple, dict, set or object, that take part in the forward pass and get
gradients, and that no optimizer holds. A frozen teacher hidden in a list on purpose is not reported. On an accelerator also those
that `.to()` left on another device, where a call that was given one of them raises.

## Why it matters
parameters(), state_dict(), to() and train() pass them by: they never learn, are not saved, and stay on the CPU.

## Example
    self.layers = [nn.Linear(d, d) for _ in range(4)]

## Fix
    self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(4))

## Options
None.

## See also
ND506 parameter-not-in-optimizer, ND515 repeated-module
""",
    "ND515": """\
## What it checks
One module object with parameters that stands several times in an nn.Sequential, nn.ModuleList or nn.ModuleDict.

## Why it matters
The model has as many layers as it seems, but the weights of one. Where sharing is meant, call the one layer in a loop: that says so.

## Example
    self.layers = nn.ModuleList([layer] * 6)

## Fix
    self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(6))

## Options
None.

## See also
ND514 unregistered-module
""",
    "ND516": """\
## What it checks
Modules with parameters that are made during the step, on the way to the loss. Looked at where a step's graph is examined: parameters
without a gradient were seen, or `nanodoc check-grad-graph` was called.

## Why it matters
The layer has new random weights at every step and never learns.

## Example
    def forward(self, x):
        return nn.Linear(64, 10)(x)

## Fix
Make it in __init__.

## Options
None.

## See also
ND505 unused-parameter
""",
    "ND517": """\
## What it checks
`module.requires_grad = False`, which sets a plain attribute on the module, while its parameters still require gradient.

## Why it matters
The part that was meant to be frozen trains.

## Example
    model.backbone.requires_grad = False

## Fix
    model.backbone.requires_grad_(False)

## Options
None.

## See also
ND508 unexpectedly-frozen
""",
}
