"""## What it checks
Columns of ids that are looked up in one embedding without offsets, although the table has as many
rows as the ids of all columns together and the rows beyond the largest column's are never used:
each column should have separate rows. The stored batches are examined (up to eight).

## Why it matters
User 5, item 5 and weekday 5 share one row. The model learns, but mixes them up.

## Example
    nn.Embedding(sum(sizes), 16)(ids)

## Fix
    offsets = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    nn.Embedding(sum(sizes), 16)(ids + offsets)

## See also
ND102 index-out-of-range
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Stage, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import Standing, at_call, calls_of, learning_claim

_MOST_USED = 0.75  # of the rows: columns with rows of their own use nearly all


@rule(
    "ND124",
    "shared-rows",
    "warning",
    "columns of ids that share the rows of one embedding",
    needs=("inspection", "data"),
    preflight="batch",
    thresholds={"filled": Threshold(0.9, "of the table's rows: the total of the columns' ids")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, data = calls_of(evidence), evidence.data
    if calls is None or data is None:
        return
    columns = {leaf.path: leaf.columns for leaf in data.leaves if leaf.columns}
    for call in calls.calls:
        if call.name != "embedding" or len(call.arguments) < 2 or not call.requires_grad:
            continue
        sizes = [largest + 1 for largest in columns.get(calls.leaf(call.arguments[0]) or "", ())]
        rows = call.arguments[1].shape[0] if call.arguments[1].shape else 0
        filled = sum(sizes) / rows if rows else 0.0
        # text has one vocabulary: its columns are alike, and together far more than the table
        if len(set(sizes)) < 2 or max(sizes) > _MOST_USED * rows:
            continue
        fewest = check.limit(evidence, "filled")
        if not fewest <= filled <= 1:
            continue
        shown = ", ".join(str(size) for size in sizes[:6]) + (", …" if len(sizes) > 6 else "")
        exact = (filled - fewest) / (1 - fewest) if fewest < 1 else 1.0
        yield learning_claim(
            rule,
            location_key(call.site) or ("rows", call.index),
            title=f"{len(sizes)} columns of ids share the first {max(sizes)} of {rows} rows",
            explanation=f"The columns' ids are below {shown}: {sum(sizes)} ids together, for a "
            f"table of {rows} rows. They are looked up without offsets, so equal ids of "
            "different columns share one row.",
            culprit=at_call(call, evidence),
            step=0,
            # the closer the sum comes to the table, the less is it chance; more columns, too
            weight=confidence(0.5, exact, 0.3 if len(sizes) > 2 else 0.0),
            notes=[("each column's ids are below", shown), ("rows of the table", rows)],
            fix="add to each column the sizes of those before it: ids + offsets",
            standing=Standing(stage=Stage.WIRING),
        )
        return
