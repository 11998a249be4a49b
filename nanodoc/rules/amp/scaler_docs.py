"""The texts of ND402, ND403, ND404 and ND407."""

COLLAPSING = """\
## What it checks
More than five steps in a row that the GradScaler skipped although steps had been taken before, or a loss scale below 1.
The skips of the first steps are the scale's calibration: they are counted in the report and are healthy.

When the run is over, skipped steps are run again without the scale. If one is not finite there either, the op that makes the
bad value is reported instead (ND203, ND301, ND305, ND407 …): then no scale would do.

## Why it matters
A skipped step learns nothing, and at a low scale small gradients are rounded to zero in float16.

## Example
    scaler = torch.amp.GradScaler("cuda", growth_interval=1, growth_factor=16.0)

## Fix
Keep the scaler's defaults; look at what overflows (`nanodoc run --frames`).

## Options
None. Five in a row: GradScaler's documentation expects a skip once every few hundred or thousand steps. Below 1: its
documentation of update().

## See also
ND407 persistent-overflow, ND305 backward-overflow, ND306 gradient-underflow
"""

CLIP = """\
## What it checks
clip_grad_norm_, clip_grad_value_, or a clip written by hand, on gradients of a scaled loss that nothing has unscaled yet. It is
reported only where the clip changed something: the norm it saw was above its limit.

## Why it matters
The limit is compared with a norm that is too large by the loss scale (65536 at first), so nearly every step is clipped to
almost nothing; and as the scale changes, so does the effective learning rate. No error is raised.

## Example
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)

## Fix
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

## Options
None.

## See also
ND404 scaler-call-order
"""

ORDER = """\
## What it checks
The calls that a train_step makes on its GradScaler, its optimizers and its losses, in the order they are made:
scale → backward → unscale_ (at most once) → clip → step → update. Reported are a backward() of a loss that was not scaled, a
scaled loss that is thrown away, optimizer.step() on scaled gradients, a backward() after unscale_(), update() that is missing or
comes between backward() and step(), unscale_() twice, and a GradScaler made anew in every step.

## Why it matters
Some of these raise an error that names neither the call that is wrong nor the one that is missing. The others are silent: the
updates are too large or too small by the loss scale.

## Example
    scaler.scale(loss).backward()
    optimizer.step()                     # scaled gradients
    scaler.update()

## Fix
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

## Options
None. A train_step that reads the scale (get_scale()) and changes the gradients itself is taken to unscale them by hand.

## See also
ND403 clip-before-unscale, ND401 no-inf-checks
"""

PERSISTENT = """\
## What it checks
A GradScaler that skips every step, or goes on skipping until the scale is below 1. When the run is over the step is run again
without the scale and traced: its gradients are not finite there either, and the op that makes them so is named.

## Why it matters
The scaler lowers the scale for ever and no step is ever taken, while the loss that is printed stays finite.

## Example
    (x.half() * 300.0).pow(2).mean().backward()      # the gradient of the square passes 65504 at any scale

## Fix
Run that module in float32, or use bfloat16, which has float32's range.

## Options
None.

## See also
ND402 collapsing-scale, ND305 backward-overflow, ND203 low-precision-overflow
"""
