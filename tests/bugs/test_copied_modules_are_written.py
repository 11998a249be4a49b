"""copy.deepcopy() fills storages and then hands them to tensors by set_(): the tensor's first,
empty storage was forgotten, its address used again, and a copied parameter was reported as never
written to."""

from __future__ import annotations

import copy

from torch import nn

from nanodoc.recipe.build_watch import BuildWatch


def test_a_deep_copy_is_not_uninitialised() -> None:
    watch = BuildWatch()
    with watch:
        models = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(64, 32), nn.BatchNorm1d(32)
                )
            ]
        )
        for _ in range(12):
            models.append(copy.deepcopy(models[0]))
    assert watch.settle(models).never_written == set()
