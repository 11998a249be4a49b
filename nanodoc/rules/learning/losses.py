"""ND612, ND620, ND627: what is wired to the loss in a way that computes, falls, and means something
else."""

from __future__ import annotations

NORMALISERS = ("softmax", "sigmoid")
