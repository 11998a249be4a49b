"""## What it checks
At the end of the run, each network of the first step (the model, an actor and a critic, the parts
of a model that is not called as a whole) is called again on its input, and once more with sample 0
changed (without a graph, with BatchNorm using its running statistics). If the output of other
samples changes, the finding names the first call that mixed them: a recurrent or attention layer
that treats the batch as time, a softmax over the batch, a view that regroups elements. Critical if
no output changes, not even that of sample 0, and a recurrent or attention layer mixes the samples.

## Why it matters
Nothing fails and the loss falls, but the model sees other samples' answers in training and not at
inference.

## Example
    self.lstm = nn.LSTM(d, h)            # expects (time, batch, feature)
    out, _ = self.lstm(x)                # x is (batch, time, feature)

## Fix
    self.lstm = nn.LSTM(d, h, batch_first=True)

## Options
`--no-leak-check` disables the check. BatchNorm, statistics over the batch and products of all pairs
of samples (contrastive losses) are accepted.

## See also
ND501 cut-graph
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import LeakFacts
from nanodoc.rules.base import count, location_key

_HOW = {
    "recurrent": "It runs along the batch as if it were time",
    "attention": "It attends along the batch as if it were the sequence",
    "softmax": "It normalises over the batch dimension",
    "reshape": "It regroups elements of different samples",
}

_UNREAD = "no output of the model changed, not even its own; this layer's output"


@rule(
    "ND513",
    "cross-sample-leak",
    "warning",
    "one sample's output depends on another sample",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    leak = evidence.leak
    if leak is None or leak.kind not in _HOW:
        return
    layered = leak.kind in ("recurrent", "attention")
    # a lone sequence, or a batch given as one on purpose, comes without a batch dimension or as a
    # batch of one
    first = leak.shapes[0] if leak.shapes else ()
    sequence = len(first) < 3 or 1 in first[:2]
    if sequence if layered else not leak.independent:
        return
    call = leak.op.location
    where = leak.built_at or call
    layer = leak.layer_type or leak.op.short
    notes: list[tuple[str, object]] = [
        ("sample changed", leak.sample),
        ("others affected", f"{leak.affected} of {leak.batch_size - 1}"),
        ("input shape", str(list(first))),
    ]
    if leak.built_at is not None and call is not None:
        notes.append(("called at", f"{call.place}: {call.code.splitlines()[0]}"))
    fix = (
        "batch_first=True, or put time first: x.transpose(0, 1)"
        if layered
        else "work along a dimension other than the batch"
    )
    yield Claim(
        root=location_key(where) or ("leak",),
        specificity=Specificity.SPECIAL,
        stage=Stage.WIRING,
        finding=rule.finding(
            severity="critical" if leak.unread else "warning",
            confidence=confidence(0.7, 0.4 if layered else 0.1, 0.4 if leak.independent else 0.0),
            title=f"samples of one batch influence each other through {layer}",
            explanation=_explanation(leak, first),
            culprit=Culprit(
                kind="op",
                op=leak.op.op,
                module=leak.op.module,
                module_type=leak.op.module_type,
                location=where,
            ),
            phase="forward",
            step=0,
            evidence=tuple(notes),
            experiments=(
                {
                    "name": f"sample {leak.sample} changed",
                    "outcome": "no output of the model changes"
                    if leak.unread
                    else f"{leak.affected} other outputs change",
                    "loss": None,
                },
            ),
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )


def _explanation(leak: LeakFacts, first: tuple[int, ...]) -> str:
    changed = _UNREAD if leak.unread else "the model's output"
    return (
        f"{_HOW[leak.kind]}: when sample {leak.sample} alone was changed, {changed} changed for "
        f"{count(leak.affected, 'other sample')} of {leak.batch_size - 1} too, first after this "
        f"call, whose input is {list(first)} with the batch of {leak.batch_size} in the wrong "
        "place."
    )
