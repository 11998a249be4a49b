"""Op-specific counts that the generic statistics can't show: masked rows, kept targets, lengths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from nanodoc.facts.notes import CtcLengths, Divisor, KeptTargets, MaskedRows, OpNotes


def op_notes(func: Any, args: Any, kwargs: dict[str, Any]) -> OpNotes | None:
    """Counts for the ops listed in `_NOTES`, taken before the op runs; None for the rest."""
    note = _NOTES.get(func.name().removeprefix("aten::").split(".")[0])
    if note is None:
        return None
    named = {
        a.name: args[i] if i < len(args) else kwargs.get(a.name, a.default_value)
        for i, a in enumerate(func._schema.arguments)
    }
    try:
        return note(named)
    except (RuntimeError, TypeError, KeyError, IndexError):  # an overload without these arguments
        return None


def _masked_rows(masked: torch.Tensor, along: int | None = None) -> MaskedRows:
    return MaskedRows(rows=masked.numel(), fully_masked=int(masked.sum()), along=along)


def _softmax(a: dict[str, Any]) -> MaskedRows:
    x = a["self"]
    dims = a["dim"]
    if isinstance(dims, (list, tuple)):
        return _masked_rows(torch.isneginf(x).flatten(1).all(1))
    masked = torch.isneginf(x).all(dims)
    return _masked_rows(masked, _free_axis(x, dims % x.dim()) if bool(masked.any()) else None)


def _free_axis(x: torch.Tensor, dim: int) -> int | None:
    """The last of the other axes, where no row along it is fully masked though some entries are."""
    last = next((d for d in reversed(range(x.dim())) if d != dim and x.shape[d] > 1), None)
    if last is None or last < dim or bool(torch.isneginf(x).all(last).any()):
        return None
    return last


def _logsumexp(a: dict[str, Any]) -> MaskedRows:
    return _masked_rows(
        torch.isneginf(a["self"]).all(a["dim"][0])
        if len(a["dim"]) == 1
        else torch.isneginf(a["self"]).amin(a["dim"])
    )


def _attention(a: dict[str, Any]) -> MaskedRows | None:
    mask = a.get("attn_mask", a.get("attn_bias"))
    if not isinstance(mask, torch.Tensor):
        return None
    closed = ~mask if mask.dtype == torch.bool else torch.isneginf(mask)
    return _masked_rows(closed.all(-1))


def _nll(a: dict[str, Any]) -> KeptTargets:
    kept = a["target"] != a["ignore_index"]
    weight = None
    if isinstance(a.get("weight"), torch.Tensor) and bool(kept.any()):
        weight = float(a["weight"][a["target"][kept]].sum())
    return KeptTargets(
        targets=a["target"].numel(),
        kept=int(kept.sum()),
        ignore_index=int(a["ignore_index"]),
        weight=weight,
    )


def _ctc(a: dict[str, Any]) -> CtcLengths:
    frames = torch.as_tensor(a["input_lengths"]).flatten().cpu()
    labels = torch.as_tensor(a["target_lengths"]).flatten().cpu()
    short = (labels > frames).nonzero().flatten()
    if short.numel():
        first = int(short[0])
        return CtcLengths(
            targets=labels.numel(),
            too_long=short.numel(),
            first=(first, int(frames[first]), int(labels[first])),
        )
    # repeated labels need a blank frame between them, so labels + repeats may exceed the frames
    tight = int((labels * 2 > frames).sum())
    return CtcLengths(targets=labels.numel(), too_long=0, tight=tight)


def _variance(a: dict[str, Any]) -> Divisor:
    x, dims = a["self"], a.get("dim")
    count = x.numel() if not dims else math.prod(x.shape[d] for d in dims)
    correction = a.get("correction")
    if correction is None:
        correction = 1 if a.get("unbiased", True) else 0
    return Divisor(count=count, correction=float(correction))


_NOTES: dict[str, Callable[[dict[str, Any]], OpNotes | None]] = {
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_safe_softmax": _softmax,
    "logsumexp": _logsumexp,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_attention_math": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "nll_loss_forward": _nll,
    "nll_loss2d_forward": _nll,
    "_ctc_loss": _ctc,
    "_cudnn_ctc_loss": _ctc,
    "var": _variance,
    "std": _variance,
    "var_mean": _variance,
    "std_mean": _variance,
}
