"""The ops between a cause and its symptom as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from nanodoc.facts.ops import OpFacts, TensorFacts
from nanodoc.text import clean

_HEAD = (
    f"{'op':<24} {'place':<28} {'dtype':<9} {'shape':<16} {'in min … max':<24} "
    f"{'out min … max':<24} non-finite"
)


def ops_text(ops: Sequence[OpFacts]) -> Text:
    """One line an op, in the order in which they ran; an op with a non-finite output is marked."""
    out = Text(
        f"\n{len(ops)} ops, from just before the first non-finite value to the symptom\n", "bold"
    )
    out.append(_HEAD + "\n")
    for op in ops:
        fact = op.outputs[0] if op.outputs else None
        bad = sum(output.nonfinite for output in op.outputs)
        name = op.short if op.phase == "forward" else f"{op.short} ({op.phase})"
        line = (
            f"{clean(name):<24} {_place(op):<28} {fact.dtype if fact else '':<9} "
            f"{_shape(fact):<16} {_range(op.inputs):<24} {_range(op.outputs):<24} {bad or ''}"
        )
        out.append(line.rstrip() + "\n", "bold red" if bad else "")
    return out


def _place(op: OpFacts) -> str:
    where = (
        f"{op.location.file.rpartition('/')[2]}:{op.location.line}"
        if op.location
        else op.node or ""
    )
    return clean(f"{where} {op.module}" if op.module else where)[:28]


def _shape(fact: TensorFacts | None) -> str:
    return "×".join(map(str, fact.shape)) if fact is not None else ""


def _range(facts: Sequence[TensorFacts]) -> str:
    """The range of the finite values of all tensors."""
    lows = [fact.minimum for fact in facts if fact.minimum is not None]
    highs = [fact.maximum for fact in facts if fact.maximum is not None]
    return (
        f"{min(lows):.4g} … {max(highs):.4g}"
        if lows and highs
        else "no finite value"
        if facts
        else ""
    )
