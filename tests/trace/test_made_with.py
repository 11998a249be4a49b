"""Transforms of pictures, found in the source of the files that are loaded."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanodoc.trace.made_with import moves_only, writes_in_place

KEYED = """
def transforms(Rotate, Flip, Noise):
    both = ["image", "label"]
    return [Noise(keys="image"), RandFlipd(keys=["image", "label"]), RandRotated(keys="image")]
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "transforms_of_a_user.py"
    yield file
    sys.modules.pop(file.stem, None)


def _load(file: Path, source: str) -> None:
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[file.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def test_a_transform_that_is_told_of_one_key(loaded: Path) -> None:
    _load(loaded, KEYED)
    found = moves_only("image", "label")
    assert found is not None
    assert found.line == 4
    assert moves_only("label", "image") is None
    _load(
        loaded, KEYED.replace('RandRotated(keys="image")', 'RandRotated(keys=["image", "label"])')
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(v2):\n    return v2.Normalize([0.5], [0.5], inplace=True)\n", True),
        ("def f(v2):\n    return v2.Normalize([0.5], [0.5])\n", False),
        ("def f(nn):\n    return nn.ReLU(inplace=True)\n", False),
    ],
)
def test_a_transform_that_writes_in_place(source: str, found: bool, loaded: Path) -> None:
    _load(loaded, source)
    place = writes_in_place()
    assert (place is not None and place.line == 2) == found
