"""What the model returns, and in which mode its layers run, while a step is run once more."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nanodoc.examination.augmented import Augmentations
from nanodoc.examination.likelihoods import Likelihoods
from nanodoc.examination.still_networks import DROPPING, StillNetworks
from nanodoc.facts.inspection import ModeFacts, OutputFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import DisableTorchFunction, DropoutBase
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.nested import batch_size, takes_hooks, tensor_leaves
from nanodoc.tensors.plain import is_plain
from nanodoc.trace.spans import calling_places, resolved


class ModelWatch:
    """What the model returns, and in which mode its layers run, in calls that gradients flow
    through: a validation inside the step is nobody's training."""

    def __init__(self, model: torch.nn.Module, build: BuildFacts, held: set[int]) -> None:
        self._model = model
        self._build = build
        self._held = held
        self._names = {id(module): name for name, module in model.named_modules()}
        self._handles: list[Any] = []
        self._outputs: list[OutputFacts] = []
        self._size: int | None = None
        self._seen: dict[str, ModeFacts] = {}
        self.training = False
        self.called_at: SourceSpan | None = None
        """The user's line that gave the model its inputs, first of all."""
        self.still = StillNetworks(held)
        self.augmentations = Augmentations()
        self.likelihoods = Likelihoods()

    def begin(self, capsule: StepState, position: Callable[[], int]) -> None:
        """`position` counts the calls of the step so far."""
        self.still.begin(position)
        self._size = batch_size(capsule.batches[0]) if capsule.batches else None
        if takes_hooks(self._model):
            told = self._model.register_forward_hook(self._returned, with_kwargs=True)
            self._handles.append(told)
        for module in self._model.modules():
            if isinstance(module, DROPPING) and takes_hooks(module):
                self._handles.append(module.register_forward_pre_hook(self._called))

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Around the step itself."""
        with self.augmentations.noted(), self.likelihoods.noted():
            yield

    def end(self) -> None:
        self.still.end()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def modes(self) -> list[ModeFacts]:
        return list(self._seen.values())

    @property
    def output(self) -> OutputFacts | None:
        """Of the call whose samples' outputs differ most."""
        return max(self._outputs, key=lambda output: output.spread, default=None)

    @ours
    def _called(self, module: torch.nn.Module, args: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self.training |= self._model.training
        name = self._names[id(module)]
        if isinstance(module, DropoutBase):
            if module.p == 0:
                return
        elif not getattr(module, "track_running_stats", False):
            return
        parent = self._model.get_submodule(name.rpartition(".")[0])
        own = any(self._trains(p) for p in module.parameters())
        # what lies behind a frozen network may learn: its statistics are to stay
        learns = (
            any(self._trains(p) for p in parent.parameters())
            if isinstance(module, DropoutBase)
            else own or any(t.requires_grad for _, t in tensor_leaves(list(args)))
        )
        before = self._seen.get(name)
        undone = self._build.eval_undone(module) if module.training else None
        if before is not None and before.training and before.eval_at is None:
            undone = None  # frozen for one of its calls only, as a generator is
        self._seen[name] = ModeFacts(
            module=name,
            module_type=type(module).__name__,
            training=module.training or (before is not None and before.training),
            trainable=learns,
            momentum=_largest(before.momentum if before is not None else 0.0, module),
            untouched=_untouched(module),
            eval_at=undone[0] if undone else None,
            train_at=undone[1] if undone else None,
            made_at=self._build.layer_made_at(name),
        )

    def _trains(self, parameter: torch.nn.Parameter) -> bool:
        return parameter.requires_grad and (not self._held or id(parameter) in self._held)

    @ours
    def _returned(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.called_at is None and torch.is_grad_enabled():
            mine, caller = calling_places(2)
            self.called_at = resolved(caller or mine)
        size = self._size
        if not torch.is_grad_enabled() or size is None or size < 2:
            return
        made = [
            t
            for _, t in tensor_leaves(output)
            if t.is_floating_point() and t.requires_grad and is_plain(t)
        ]
        made = [t for t in made if t.dim() and t.shape[0] == size]
        given = [
            t
            for _, t in tensor_leaves([list(args), dict(kwargs)])
            if is_plain(t) and t.dim() and t.shape[0] == size
        ]
        if not made or not given:
            return
        with torch.no_grad(), DisableTorchFunction():
            differ = any(not bool((t == t[:1]).all()) for t in given)
            spreads = [_spread_of(t) for t in made]
        self._outputs.append(
            OutputFacts(batch_size=size, spread=max(spreads), inputs_differ=differ)
        )


def _largest(before: float | None, module: torch.nn.Module) -> float | None:
    """The momentum of a batch norm, of several calls in a step the largest: one of them may be kept
    from its statistics on purpose. None means that all batches count alike."""
    now = getattr(module, "momentum", None)
    return None if before is None or now is None else max(before, now)


def _untouched(module: torch.nn.Module) -> bool:
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if mean is None or variance is None:
        return False
    with torch.no_grad(), DisableTorchFunction():
        return not bool(mean.any()) and bool((variance == 1).all())


def _spread_of(out: torch.Tensor) -> float:
    """Largest difference between two samples, relative to the largest value; inf for what is not
    finite."""
    rows = out.detach().float().reshape(out.shape[0], -1)
    if not rows.numel() or not bool(torch.isfinite(rows).all()):
        return math.inf
    largest = float(rows.abs().max())
    return float((rows - rows[0]).abs().max()) / largest if largest else 0.0
