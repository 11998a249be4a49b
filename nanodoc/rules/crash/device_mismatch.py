"""## What it checks
An exception about devices. The step is run once more with its calls recorded: the device of each
tensor given to the function that raised, and the line that made it.

## Why it matters
model.to(device) moves parameters and buffers, but not tensors kept as plain attributes or made
inside forward.

## Example
    RuntimeError: Expected all tensors to be on the same device, but found at least two devices,
    cuda:0 and cpu!

## Fix
    positions = torch.arange(x.shape[1], device=x.device)
    self.register_buffer("mask", mask)          # moves with the model

## See also
ND703 checkpoint-device
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.crash import FailedCall
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.crash.mismatch_claims import DEVICE, Mismatch, mismatch_claim


@rule(
    "ND706",
    "device-mismatch",
    "critical",
    "tensors on different devices",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if (
        failure is None
        or not failure.raised_by_torch
        or failure.type not in ("RuntimeError", "NotImplementedError")
        or not DEVICE.search(failure.message)
    ):
        return
    call = evidence.crash.call if evidence.crash is not None else None
    fixes = [*_device_fixes(call)] if call is not None else []
    if "meta" in failure.message and not fixes:
        fixes = [
            Fix(
                title="allocate its memory before it is used: module.to_empty(device=...) and an "
                "initialisation, or load its weights with assign=True",
                confidence="likely",
            )
        ]
    yield mismatch_claim(
        rule,
        evidence,
        failure,
        call,
        Mismatch(
            property="devices",
            shown=lambda argument: f"{argument.device} {list(argument.shape)}",
            fixes=tuple(fixes),
            kind=lambda argument: argument.device,
        ),
    )


def _device_fixes(call: FailedCall) -> Iterable[Fix]:
    devices = [argument.device for argument in call.given]
    if len(set(devices)) < 2:
        return
    weights = next(
        (
            argument
            for argument in call.given
            if (argument.leaf or "").startswith(("param:", "buffer:")) and argument.device != "meta"
        ),
        None,
    )
    for argument in call.given:
        made = f" made by {argument.made_by}" if argument.made_by else ""
        if argument.device == "meta":
            yield Fix(
                title=f"the tensor{made or ' ' + (argument.leaf or '')} has no memory (meta): "
                "create it on a device, or allocate its module with to_empty() and load it",
                confidence="likely",
            )
            return
        if weights is not None and argument.device != weights.device:
            yield Fix(
                title=f"the tensor{made} is on {argument.device}, the weights are on "
                f"{weights.device}: create it there (device=x.device), or register it as a buffer "
                "so that it moves with the model",
                confidence="likely",
            )
            return
