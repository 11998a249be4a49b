"""Marks in the autograd graph: which scaler multiplied a loss, and whether the loss was divided
last."""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.graph

_MARK = "nanodoc: scaled"  # in the metadata of the autograd node that multiplied by the scale
# nodes from the loss to the multiplication; a division by the number of micro-batches lies between,
# not a model
_FARTHEST = 64
_NEAR = 3  # nodes from the loss


_scalers: set[int] = set()
"""Those that have marked a node: without one there is nothing to look for."""


def mark_scaled(outputs: Any, scaler: Any) -> None:
    """Marks the nodes that made `outputs`, a tensor or several, as a multiplication by `scaler`."""
    _scalers.add(id(scaler))
    if isinstance(outputs, torch.Tensor):
        outputs = [outputs]
    for tensor in outputs if isinstance(outputs, (list, tuple)) else []:
        if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
            tensor.grad_fn.metadata[_MARK] = id(scaler)  # type: ignore[index]  # a property, which torch's stub calls a method


def divided(root: Any) -> bool:
    """The loss was multiplied or divided last, as a part of a mean over micro-batches is."""
    node = (
        root.node
        if isinstance(root, torch.autograd.graph.GradientEdge)
        else getattr(root, "grad_fn", None)
    )
    for _ in range(_NEAR):
        if node is None:
            return False
        if type(node).__name__ in ("DivBackward0", "MulBackward0") and _MARK not in getattr(
            node, "metadata", {}
        ):
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def scaled_by(root: Any) -> int | None:
    """The scaler (its identity) whose multiplication lies near the root of this graph."""
    if not _scalers:
        return None
    queue = [
        root.node
        if isinstance(root, torch.autograd.graph.GradientEdge)
        else getattr(root, "grad_fn", None)
    ]
    for _ in range(_FARTHEST):
        if not queue:
            return None
        node = queue.pop(0)
        if node is None:
            continue
        mark = getattr(node, "metadata", {}).get(_MARK)
        if mark is not None:
            return int(mark)
        queue.extend(following for following, _ in node.next_functions)
    return None
