"""What `nanodoc explain` says of ND801 to ND804."""

LOCAL_DOC = """\
## What it checks
Under torchrun: how every rank ended. A step that went wrong is run again on each rank without the others, so that its own batch and its own
gradients tell whether the trouble began there or arrived by the all-reduce.

## Why it matters
After one all-reduce every rank has the NaN of one, and after one crash every rank has an error about its neighbour.

## Example
    torchrun --nproc-per-node 4 -m nanodoc run train.py:build

## Fix
That of the finding of the rank that is named.

## Options
None.

## See also
ND101 non-finite-input, ND711 process-died, ND804 desynchronised-ranks
"""

DIVERGED_DOC = """\
## What it checks
When every rank is through: a digest of every parameter that learns, on every rank, as far as a DistributedDataParallel over all ranks keeps
them alike. Without one, parameters that began alike and end apart are an info: it may be meant.

## Why it matters
Replicas that differ train as many models as there are ranks, and save one of them.

## Example
    if rank == 0:
        model.module.head.reset_parameters()

## Fix
Wrap the model in DistributedDataParallel, and change parameters before that, or on every rank alike.

## Options
None.

## See also
ND801 rank-local-failure
"""

UNUSED_DOC = """\
## What it checks
The error that DDP raises in the step after one in which some parameters got no gradient; they are named.

## Why it matters
The message names indices, one step too late.

## Example
    RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.

## Fix
    DistributedDataParallel(model, find_unused_parameters=True)   # where they change from step to step

## Options
None.

## See also
ND505 unused-parameter
"""

DESYNCHRONISED_DOC = """\
## What it checks
With `--timeout` under torchrun: where every rank stood when none went on; and ranks that are through while others still wait in a collective.

## Why it matters
The rank that reports the timeout is the one that waited, not the one that is late.

## Example
    torchrun --nproc-per-node 4 -m nanodoc run train.py:build --timeout 2m

## Fix
Look at the line of the rank that is behind. Ranks with fewer batches: DistributedSampler(..., drop_last=True).

## Options
`--timeout 2m`.

## See also
ND712 hung-step, ND801 rank-local-failure
"""

SAME_BATCHES_DOC = """\
## What it checks
Under torchrun, with a model in DistributedDataParallel: whether the last steps' batches were the same on every rank, bit by bit, while they
differed from step to step.

## Why it matters
DDP averages the gradients of the ranks. Where all compute the same one, many devices do the work of one; nothing fails, and the loss falls as it
does on one device.

## Example
    loader = DataLoader(dataset, batch_size=32)   # on every rank

## Fix
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    sampler.set_epoch(epoch)   # in every epoch: else the order is always the same

## Options
None.

## See also
ND108 constant-batch
"""
