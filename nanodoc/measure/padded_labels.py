"""Labels of positions that a mask of the batch calls padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from nanodoc.facts.loop import PaddedLabels


def padded_labels(leaves: Mapping[str, Sequence[torch.Tensor]]) -> tuple[PaddedLabels, ...]:
    """Whole numbers of shape (samples, positions), 0 and more, that are one and the same wherever a
    mask of 0 and 1 in the same shape is 0: behind or in front of rows of different lengths."""
    masks = {path: tensors for path, tensors in leaves.items() if _is_padding_mask(tensors)}
    found = []
    for mask, zeros in masks.items():
        for path, tensors in leaves.items():
            if (
                path == mask
                or not _whole(tensors)
                or [t.shape for t in tensors] != [t.shape for t in zeros]
            ):
                continue
            pairs = zip(tensors, zeros, strict=True)
            padded = torch.cat([t[(z == 0).to(t.device)].cpu() for t, z in pairs])
            values = padded.unique()
            if len(values) == 1 and int(values[0]) >= 0:
                share = len(padded) / sum(t.numel() for t in tensors)
                found.append(PaddedLabels(path=path, mask=mask, value=int(values[0]), share=share))
    return tuple(found)


def _whole(tensors: Sequence[torch.Tensor]) -> bool:
    return all(t.dim() == 2 and t.dtype in (torch.int64, torch.int32) for t in tensors)


def _is_padding_mask(tensors: Sequence[torch.Tensor]) -> bool:
    if any(t.dim() != 2 or t.is_floating_point() for t in tensors):
        return False
    lengths: set[int] = set()
    for tensor in tensors:
        if not bool(((tensor == 0) | (tensor == 1)).all()):
            return False
        rows = tensor.long()
        behind, before = rows.cumprod(1).sum(1), rows.flip(1).cumprod(1).sum(1)
        if not bool((torch.maximum(behind, before) == rows.sum(1)).all()):
            return False
        lengths |= set(rows.sum(1).tolist())
    return len(lengths) > 1
