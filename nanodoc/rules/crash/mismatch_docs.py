"""What `nanodoc explain` says of ND705, ND706 and ND707."""

SHAPE_DOC = """\
## What it checks
An exception of torch's about sizes. The step is run once more with its calls written down: the function that raised, the shape of each tensor it
was given, and the line that made it. Said too: whether this batch is smaller than the first.

## Why it matters
The message names two numbers and no tensor; the line that raises is often not the one that made the wrong shape.

## Example
    RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 400x10)

## Fix
    self.fc = nn.Linear(512, 10)

## Options
None.

## See also
ND111 broadcast-loss, ND104 ragged-batch
"""

DEVICE_DOC = """\
## What it checks
An exception about devices. The step is run once more with its calls written down: which of the tensors given to the function that raised lives
where, and which line made it.

## Why it matters
model.to(device) moves parameters and buffers, not tensors kept as plain attributes, nor those made inside forward.

## Example
    RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!

## Fix
    positions = torch.arange(x.shape[1], device=x.device)
    self.register_buffer("mask", mask)          # moves with the model

## Options
None.

## See also
ND703 checkpoint-device
"""

DTYPE_DOC = """\
## What it checks
An exception about dtypes. The step is run once more with its calls written down: the dtype of each tensor given to the function that raised, and
the line that made it.

## Why it matters
NumPy makes float64, labels arrive as float32, half weights meet float32 inputs: the message does not say which of them came from where.

## Example
    RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float

## Fix
    torch.from_numpy(array).float()

## Options
None.

## See also
ND406 half-parameters
"""
