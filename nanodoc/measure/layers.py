"""Statistics of one step that is looked at more closely: every layer's output, every parameter's
gradient, and how far the update moved the weights.

Numbers stay on their device until `finish`, which reads them with one copy. No tensor of the run is
kept beyond the step.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import (
    DisableTorchFunction,
    current_autograd_node,
    foreach_norm,
    foreach_sub,
)
from nanodoc.tensors.host_memory import free_memory
from nanodoc.tensors.plain import is_plain, without_values

HALF = (torch.bfloat16, torch.float16)
_FLAT = 0.01  # of the derivative at 0
_MOST_LAYERS = 512
_SHARE_OF_MEMORY = 0.1
_MOST_VALUES = 65_536  # of an output


@dataclass(frozen=True, slots=True)
class LayerNumbers:
    """One layer's output in one step."""

    module: str
    module_type: str
    mean: float
    std: float
    absmax: float
    zeros: float
    saturated: float | None


@dataclass(frozen=True, slots=True)
class GradientNumbers:
    """One parameter's gradient in one step."""

    mean: float
    std: float
    absmax: float
    norm: float


@dataclass(frozen=True, slots=True)
class Sample:
    """What one step showed. `ratios` are |Δw|/|w| by parameter and by parameter group; None where
    nothing stepped. `kept` is the share of the elements of half-precision parameters with a
    gradient, and a rate above 0, that the step left bitwise as they were."""

    step: int
    layers: tuple[LayerNumbers, ...]
    gradients: dict[str, GradientNumbers]
    ratios: dict[str, float]
    group_ratios: tuple[float, ...]
    kept: float | None = None

    def by_layer(self) -> dict[str, tuple[float | None, float | None]]:
        """(norm of its parameters' gradients, largest of their ratios) of each module, by its
        path; None where it was not measured."""
        norms: dict[str, list[float]] = {}
        ratios: dict[str, list[float]] = {}
        for name, gradient in self.gradients.items():
            norms.setdefault(name.rpartition(".")[0], []).append(gradient.norm)
        for name, ratio in self.ratios.items():
            ratios.setdefault(name.rpartition(".")[0], []).append(ratio)
        return {
            module: (
                math.hypot(*norms[module]) if module in norms else None,
                max(ratios.get(module, ()), default=None),
            )
            for module in dict.fromkeys((*norms, *ratios))
        }


class LayerProbe:
    """Around one step: `watching` while it runs, `gradients` when they are complete, `finish` when
    the weights have moved."""

    def __init__(
        self, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], *, hooks: bool
    ) -> None:
        leaves = (
            [(n, m) for n, m in model.named_modules() if not any(True for _ in m.children())][
                :_MOST_LAYERS
            ]
            if hooks
            else []
        )
        self._leaves = {id(module): name for name, module in leaves}
        self._names = {id(p): n for n, p in model.named_parameters()}
        self._optimizers = optimizers
        self._layers: list[tuple[str, str, bool]] = []
        self._numbers: list[torch.Tensor] = []
        self._gradients: list[str] = []
        self._gradient_numbers: list[torch.Tensor] = []
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._with_gradient: dict[int, torch.Tensor] = {}
        """Of half-precision parameters, by identity: which elements have a gradient."""
        self.seconds = 0.0
        """Spent in hooks while the step ran."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Around the step."""
        held = [p for o in self._optimizers for group in o.param_groups for p in group["params"]]
        held = [
            p
            for p in held
            if isinstance(p, torch.Tensor)
            and not without_values(p)
            and is_plain(p)
            and p.requires_grad
            and not p.is_complex()
        ]
        if _fits(held):
            with torch.no_grad():
                self._before = [(p, p.detach().clone()) for p in held]
        if not self._leaves:
            yield
            return
        # one hook for all modules, in none of them: the training code may copy or pickle its model
        # in the middle of the step
        handle = torch.nn.modules.module.register_module_forward_hook(self._returned)
        try:
            yield
        finally:
            handle.remove()

    @ours
    def _returned(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        name = self._leaves.get(id(module))
        out = output[0] if isinstance(output, tuple) and output else output
        if (
            name is None
            or not isinstance(out, torch.Tensor)
            or not out.is_floating_point()
            or not is_plain(out)
            or out.numel() < 2
        ):
            return
        # activation checkpointing, inside backward
        if current_autograd_node() is not None:
            return
        began = time.perf_counter()
        # a tensor's class may have methods of its own, and whatever fails here is no error of the
        # training's
        with (
            contextlib.suppress(Exception),
            torch.no_grad(),
            torch.autocast(out.device.type, enabled=False),
            DisableTorchFunction(),
        ):
            values = _some(out.detach()).float()
            std, mean = torch.std_mean(values)
            low, high = torch.aminmax(values)
            zeros = (values == 0).float().mean()
            flat = _flat_share(module, values)
            self._numbers.append(
                torch.stack(
                    [mean, std, torch.maximum(-low, high), zeros, zeros if flat is None else flat]
                )
            )
            self._layers.append((name, type(module).__name__, flat is not None))
        self.seconds += time.perf_counter() - began

    def gradients(self) -> None:
        """The gradients are complete, and no optimizer has stepped on them yet."""
        with (
            torch.no_grad(),
            contextlib.suppress(Exception),
            DisableTorchFunction(),
        ):
            idle = self._idle()
            for parameter, _ in self._before:
                grad = parameter.grad
                name = self._names.get(id(parameter))
                if (
                    grad is None
                    or name is None
                    or not is_plain(grad)
                    or grad.is_complex()
                    or name in self._gradients
                ):
                    continue
                if parameter.dtype in HALF and id(parameter) not in idle:
                    self._with_gradient[id(parameter)] = grad.detach() != 0
                values = grad.detach().float()
                std, mean = (
                    torch.std_mean(values)
                    if values.numel() > 1
                    else (values.new_zeros(()), values.mean())
                )
                low, high = torch.aminmax(values)
                self._gradients.append(name)
                largest = torch.maximum(-low, high)
                # squares of small and of large numbers leave float32's range
                scaled = values / torch.where(largest > 0, largest, torch.ones_like(largest))
                row = [mean, std, largest, largest * torch.linalg.vector_norm(scaled)]
                self._gradient_numbers.append(torch.stack(row))

    def _idle(self) -> set[int]:
        """The identities of the parameters whose rate is 0 now."""
        groups = [group for o in self._optimizers for group in o.param_groups]
        still = [
            group for group in groups if isinstance(group.get("lr"), float) and not group["lr"]
        ]
        return {id(p) for group in still for p in group["params"]}

    def _kept(self) -> float | None:
        """As `Sample`."""
        asked = [(p, w, self._with_gradient.get(id(p))) for p, w in self._before]
        rows = [
            torch.stack([with_gradient.sum(), ((p == w) & with_gradient).sum()])
            for p, w, with_gradient in asked
            if with_gradient is not None
        ]
        elements, kept = map(sum, zip(*_rows(rows), strict=True)) if rows else (0, 0)
        return kept / elements if elements else None

    def finish(self, step: int) -> Sample:
        """Reads everything, and lets go of the weights as they were."""
        ratios: dict[str, float] = {}
        groups: list[float] = []
        with torch.no_grad():
            # a net may grow
            self._before = [
                (p, w) for p, w in self._before if p.shape == w.shape and p.device == w.device
            ]
            if self._before:
                now, was = [p.detach() for p, _ in self._before], [w for _, w in self._before]
                moved = _read(foreach_norm(foreach_sub(now, was)))
                sizes = _read(foreach_norm(was))
                for (parameter, _), change, size in zip(self._before, moved, sizes, strict=True):
                    name = self._names.get(id(parameter))
                    if name is not None and size > 0:
                        ratios[name] = change / size
                by_id = {
                    id(p): (c, s) for (p, _), c, s in zip(self._before, moved, sizes, strict=True)
                }
                for optimizer in self._optimizers:
                    for group in optimizer.param_groups:
                        pairs = [by_id[id(p)] for p in group["params"] if id(p) in by_id]
                        size = math.hypot(*(s for _, s in pairs)) if pairs else 0.0
                        groups.append(
                            math.hypot(*(c for c, _ in pairs)) / size if size > 0 else 0.0
                        )
            kept = self._kept()
            layers = [
                LayerNumbers(name, kind, row[0], row[1], row[2], row[3], row[4] if flat else None)
                for (name, kind, flat), row in zip(self._layers, _rows(self._numbers), strict=True)
            ]
            gradients = {
                name: GradientNumbers(*row)
                for name, row in zip(self._gradients, _rows(self._gradient_numbers), strict=True)
            }
        self._before, self._numbers, self._gradient_numbers = [], [], []
        self._with_gradient = {}
        return Sample(step, tuple(layers), gradients, ratios, tuple(groups), kept)


def _fits(parameters: list[torch.Tensor]) -> bool:
    """A copy of these takes little of the memory that is free."""
    needed: dict[torch.device, int] = {}
    for parameter in parameters:
        needed[parameter.device] = (
            needed.get(parameter.device, 0) + parameter.numel() * parameter.element_size()
        )
    for device, size in needed.items():
        free = free_memory(device)
        if free is not None and size > _SHARE_OF_MEMORY * free:
            return False
    return True


def _some(values: torch.Tensor) -> torch.Tensor:
    """All of a small output, every n-th element of a large one: its statistics are told by tens of
    thousands of values."""
    every = values.numel() // _MOST_VALUES
    return values.reshape(-1)[::every] if every > 1 and values.is_contiguous() else values


def _flat_share(module: torch.nn.Module, values: torch.Tensor) -> torch.Tensor | None:
    """Share of the outputs where the derivative is below a hundredth."""
    if isinstance(module, torch.nn.Sigmoid):
        return (values * (1 - values) < _FLAT).float().mean()
    if isinstance(module, torch.nn.Tanh):
        return (1 - values * values < _FLAT).float().mean()
    return None


def _rows(numbers: list[torch.Tensor]) -> list[list[float]]:
    if not numbers:
        return []
    device = numbers[0].device
    rows: list[list[float]] = torch.stack([number.to(device) for number in numbers]).tolist()
    return rows


def _read(norms: Any) -> list[float]:
    return [row[0] for row in _rows([norm.float().reshape(1) for norm in norms])]
