"""Op-specific counts that the generic statistics can't show: masked rows, kept targets, lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def op_notes(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, float]:
    """Counts for the ops listed in `_NOTES`, taken before the op runs; empty for the rest."""
    note = _NOTES.get(func.name().removeprefix("aten::").split(".")[0])
    if note is None:
        return {}
    named = {
        a.name: args[i] if i < len(args) else kwargs.get(a.name, a.default_value)
        for i, a in enumerate(func._schema.arguments)
    }
    try:
        return note(named)
    except (RuntimeError, TypeError, KeyError, IndexError):  # an overload without these arguments
        return {}


def _softmax(a: dict[str, Any]) -> dict[str, float]:
    x = a["self"]
    dims = a["dim"]
    masked = (
        torch.isneginf(x).all(dims)
        if not isinstance(dims, (list, tuple))
        else torch.isneginf(x).flatten(1).all(1)
    )
    return {"rows": float(masked.numel()), "fully_masked_rows": float(masked.sum())}


def _logsumexp(a: dict[str, Any]) -> dict[str, float]:
    masked = (
        torch.isneginf(a["self"]).all(a["dim"][0])
        if len(a["dim"]) == 1
        else torch.isneginf(a["self"]).amin(a["dim"])
    )
    return {"rows": float(masked.numel()), "fully_masked_rows": float(masked.sum())}


def _attention(a: dict[str, Any]) -> dict[str, float]:
    mask = a.get("attn_mask", a.get("attn_bias"))
    if not isinstance(mask, torch.Tensor):
        return {}
    closed = ~mask if mask.dtype == torch.bool else torch.isneginf(mask)
    rows = closed.all(-1)
    return {"rows": float(rows.numel()), "fully_masked_rows": float(rows.sum())}


def _nll(a: dict[str, Any]) -> dict[str, float]:
    kept = (a["target"] != a["ignore_index"]).sum()
    notes = {
        "targets": float(a["target"].numel()),
        "kept_targets": float(kept),
        "ignore_index": float(a["ignore_index"]),
    }
    if isinstance(a.get("weight"), torch.Tensor) and kept:
        labels = a["target"][a["target"] != a["ignore_index"]]
        notes["kept_weight"] = float(a["weight"][labels].sum())
    return notes


def _ctc(a: dict[str, Any]) -> dict[str, float]:
    frames = torch.as_tensor(a["input_lengths"]).flatten().cpu()
    labels = torch.as_tensor(a["target_lengths"]).flatten().cpu()
    short = (labels > frames).nonzero().flatten()
    notes = {"targets": float(labels.numel()), "too_long": float(short.numel())}
    if short.numel():
        first = int(short[0])
        notes |= {
            "first_sample": float(first),
            "first_frames": float(frames[first]),
            "first_labels": float(labels[first]),
        }
    elif labels.numel():
        # repeated labels need a blank frame between them, so labels + repeats may exceed the frames
        notes["tight"] = float((labels * 2 > frames).sum())
    return notes


def _variance(a: dict[str, Any]) -> dict[str, float]:
    x, dims = a["self"], a.get("dim")
    count = x.numel() if not dims else _product([x.shape[d] for d in dims])
    correction = a.get("correction")
    if correction is None:
        correction = 1 if a.get("unbiased", True) else 0
    return {"count": float(count), "correction": float(correction)}


def _product(sizes: list[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


_NOTES: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {
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
