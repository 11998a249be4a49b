"""YAML of configurations, which may come from strangers: bounded in size and in depth."""

from __future__ import annotations

from typing import Any

import yaml

_LARGEST = 1 << 20  # characters
_MOST_VALUES = 10_000
_DEEPEST = 50


def safe_yaml(text: str) -> Any:
    """As yaml.safe_load, of files in which few aliases do not stand for very many values. Raises
    `ValueError` besides what that raises."""
    if len(text) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST} characters")
    sizes: dict[int, int] = {}
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None and _size(root, sizes, 0) > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES} values, aliases counted each time")
    return yaml.safe_load(text)


def _size(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """How many values a node stands for. Raises `ValueError` where it holds itself, or deeply."""
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} deep")
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise ValueError("a value holds itself")
        return sizes[id(node)]
    sizes[id(node)] = 0
    size = 1
    if isinstance(node, yaml.SequenceNode):
        size += sum(_size(inner, sizes, depth + 1) for inner in node.value)
    elif isinstance(node, yaml.MappingNode):
        size += sum(_size(part, sizes, depth + 1) for pair in node.value for part in pair)
    sizes[id(node)] = size
    return size
