"""Layers that a line of code froze at fresh values, where that cannot be meant."""

from __future__ import annotations

import re

import torch

from nanodoc.examination.labels import user_files
from nanodoc.facts.source import SourceSpan
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.tensors.modules import WEIGHING
from nanodoc.tensors.plain import is_plain
from nanodoc.trace.returned import lines_calling

_MOST_HEAD = 6  # tensors of a head: three linear layers
_ADAPTED = re.compile(r"peft\.tuners\.")
_CLASSIFIER = re.compile(r"For(Sequence|Token|Image|Audio|Video)Classification$")
_PUTS_ADAPTERS = ("get_peft_model", "add_adapter", "inject_adapter_in_model")
_MANY = 2  # tensors; one layer looks like another


def frozen_twice(
    model: torch.nn.Module, build: BuildFacts
) -> tuple[str, str, SourceSpan | None] | None:
    """A network and its target, which was to be a copy, are one module."""
    for path, owner in model.named_modules():
        names: dict[int, str] = {}
        for name, module in owner._modules.items():
            if module is None or id(module) not in names:
                names[id(module)] = name
                continue
            parameters = dict(module.named_parameters())
            full = [f"{path}.{part}".lstrip(".") for part in (names[id(module)], name)]
            inside = [f"{full[0]}.{key}" for key in parameters]
            lines = [build.frozen_at(key) for key in inside]
            fresh = not any(key in build.loaded for key in inside)
            frozen = not any(p.requires_grad for p in parameters.values())
            if lines and fresh and frozen and all(line is not None for line in lines):
                return full[0], full[1], lines[0]
    return None


def frozen_at_zero(model: torch.nn.Module, build: BuildFacts) -> tuple[str, ...]:
    """The weights of layers that are zero in every element, as an adapter's last layer begins, and
    that a line of the user's froze so: what these layers give is zero for ever."""
    found = []
    for path, module in model.named_modules():
        weight = module._parameters.get("weight")
        if not isinstance(module, WEIGHING) or weight is None or weight.requires_grad:
            continue
        name = f"{path}.weight" if path else "weight"
        known = build.frozen_at(name) is not None and name not in build.loaded
        if known and is_plain(weight) and not bool(weight.detach().any()):
            found.append(name)
    return tuple(found)


def _copies(model: torch.nn.Module, head: list[str], body: list[str]) -> bool:
    """The head has the values' shapes of a part of the body, in the same order: a copy of it
    that follows it by an average."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    wanted = [shapes.get(name) for name in head]
    given = [shapes.get(name) for name in body]
    size = len(wanted)
    return any(given[i : i + size] == wanted for i in range(len(given) - size + 1))


def frozen_head(model: torch.nn.Module, build: BuildFacts) -> list[str]:
    """The parameters of the last layers, where a line of code froze them at fresh values behind
    a larger part that trains.

    Only for frozen – trained – frozen with a small end: a frozen loss network, a frozen decoder
    behind a trained projector and layers with adapters look otherwise.
    """
    layers = [
        (path, m)
        for path, m in model.named_modules()
        if any(p is not None for p in m._parameters.values())
    ]
    runs: list[tuple[bool, list[str]]] = []
    for path, module in layers:
        names = [
            f"{path}.{key}" if path else key
            for key, p in module._parameters.items()
            if p is not None
        ]
        trains = any(p is not None and p.requires_grad for p in module._parameters.values())
        if runs and runs[-1][0] == trains:
            runs[-1][1].extend(names)
        else:
            runs.append((trains, names))
    if [trains for trains, _ in runs] != [False, True, False]:
        return []
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    body, head = runs[1][1], runs[2][1]
    small = sum(sizes.get(name, 0) for name in head) < sum(sizes.get(name, 0) for name in body)
    fresh = not any(name in build.loaded for name in head)
    by_hand = all(build.frozen_at(name) is not None for name in head)
    found = small and fresh and by_hand and len(head) <= _MOST_HEAD
    return head if found and not (len(head) > _MANY and _copies(model, head, body)) else []


def head_beside_adapters(model: torch.nn.Module, build: BuildFacts) -> list[str]:
    """The parameters of the last layer of a classifier of transformers, where adapters of peft
    train and this new layer is frozen with what was there before: peft trains it where it is told
    the task."""
    if not any(_ADAPTED.match(type(m).__module__) for m in model.modules()):
        return []
    classifiers = [
        (path, m)
        for path, m in model.named_modules()
        if _CLASSIFIER.search(type(m).__name__) and type(m).__module__.startswith("transformers.")
    ]
    if len(classifiers) != 1:
        return []
    path, classifier = classifiers[0]
    owners = [p for p, m in classifier.named_modules() if isinstance(m, WEIGHING) and "." not in p]
    told = any(type(m).__name__ == "ModulesToSaveWrapper" for m in classifier.modules())
    if not owners or told:  # a head of several layers, or one that has an adapter
        return []
    prefix = f"{path}.{owners[-1]}." if path else f"{owners[-1]}."
    head = [(name, p) for name, p in model.named_parameters() if name.startswith(prefix)]
    fresh = not any(name in build.loaded for name, _ in head)
    return [name for name, _ in head] if fresh and not any(p.requires_grad for _, p in head) else []


def adapters_at() -> SourceSpan | None:
    """The only line of the script that puts peft's adapters into a model."""
    found = [line for file in user_files(()) for line in lines_calling(file, _PUTS_ADAPTERS)]
    return found[0] if len(found) == 1 else None
