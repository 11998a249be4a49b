"""## What it checks
The indices passed to embedding, embedding_bag, one_hot, gather and index_select, before the lookup:
on the first step while it runs, and on the step that raised. The finding gives the value, its
position, its samples, and the table's size.

## Why it matters
On the CPU it is an IndexError without a value. On a GPU it is a device-side assert, or
CUBLAS_STATUS_ALLOC_FAILED, at a later line, and the process cannot continue.

## Example
    tokenizer.add_special_tokens({"additional_special_tokens": ["<e1>"]})
    model(tokenizer("<e1> …"))          # id 30522 of 30522 rows

## Fix
    model.resize_token_embeddings(len(tokenizer))

## Options
`--no-preflight` disables the check of the first step.

## See also
ND103 label-out-of-range
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.data.range_claims import range_claim


@rule(
    "ND102",
    "index-out-of-range",
    "critical",
    "an id beyond the rows of its embedding, an index beyond its dimension",
    preflight="ids",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = next((range_ for range_ in evidence.ranges if not range_.label), None)
    if found is not None:
        whose = f"{found.module} has" if found.module else "there are"
        what = "rows" if found.function.startswith("embedding") else "entries along that dimension"
        number = "1 index" if found.count == 1 else f"{found.count} indices"
        yield range_claim(
            rule,
            evidence,
            found,
            title=f"index {found.value} at {list(found.position)}, but {whose} {found.size} {what} "
            f"(0…{found.size - 1})",
            explanation=f"{number} "
            f"of {list(found.shape)} {'is' if found.count == 1 else 'are'} out of range, from "
            f"{found.minimum} to {found.maximum}. On a GPU the same shows as a device-side "
            "assert, often somewhere else.",
            fix=_index_fix(found),
        )


def _index_fix(found: RangeFacts) -> str:
    if found.consecutive and found.minimum >= 0:
        return (
            f"these are positions: cut the sequences to {found.size}, or make room for "
            f"{found.maximum + 1} of them"
        )
    if found.function.startswith("embedding") and found.minimum >= 0:
        return (
            f"use num_embeddings of at least {found.maximum + 1}; after tokens were added to a "
            "tokenizer: model.resize_token_embeddings(len(tokenizer))"
        )
    if found.minimum == found.maximum != found.size:
        return (
            f"if {found.value} means no value, look up a valid index there and mask the result "
            "afterwards"
        )
    negative = found.minimum < 0 and found.function != "getitem"
    return "check how the indices are made" + (
        "; negative ones do not count from the end here" if negative else ""
    )
