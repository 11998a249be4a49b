"""Whether the edges of a graph were read in the wrong order."""

from __future__ import annotations

import torch

_FEWEST, _MOST = 32, 1 << 20  # edges


def is_misread(edges: torch.Tensor) -> bool:
    """Of `edges` (2, E), read row by row: taken two by two they hold the reverse of every edge, as
    the list of an undirected graph does; column by column, as they are meant to be read, they do
    not."""
    if edges.dim() != 2 or edges.shape[0] != 2 or edges.dtype != torch.long:
        return False
    if not _FEWEST <= edges.shape[1] <= _MOST or int(edges.min()) < 0:
        return False
    pairs = edges.reshape(-1).view(-1, 2).T
    between = pairs[0] != pairs[1]
    return bool(between.all()) and _is_undirected(pairs) and not _is_undirected(edges)


def _is_undirected(edges: torch.Tensor) -> bool:
    nodes = int(edges.max()) + 1
    there, back = edges[0] * nodes + edges[1], edges[1] * nodes + edges[0]
    return torch.equal(there.unique(), back.unique())
