"""What a script does beside its training steps, as far as it may be a slip: it validates in
training mode, and it puts back weights that it never copied.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from nanodoc.facts.asides import AsideFacts, RestoredFacts, ValidationFacts
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.taps import MODULE_LOADS, MODULE_STATE
from nanodoc.instrument.torch_private import BatchNormBase, DropoutBase
from nanodoc.replay.rng import RandomKeeper
from nanodoc.script.averaged import AveragedWeights
from nanodoc.script.given_inputs import GivenInputs
from nanodoc.script.overwritten import OverwrittenStores
from nanodoc.trace.spans import Place, calling_places, resolved

look_through(__file__)

_MOST_LOOKS = 8  # batches of validations
_MOST_KEPT = 16  # state_dicts


@dataclass(slots=True)
class _Taken:
    """A state_dict that a script has asked for."""

    held: weakref.ref[Any]
    place: Place | None
    versions: dict[str, int]
    """How often each tensor had been written to."""


@dataclass(slots=True)
class _Before:
    """How the model was when a batch of a validation had come."""

    norms: dict[str, int]
    random: tuple[torch.Tensor, ...]


class Asides:
    """Told of batches by `Outside`, of the model by the session."""

    def __init__(self) -> None:
        self.facts = AsideFacts()
        self.quiet: Callable[[], bool] = lambda: False
        """A step is run again, and what it does has been seen before."""
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._iterator: weakref.ref[Any] | None = None
        self.before: _Before | None = None
        """How the model was when the last batch of a validation had come; None where the script
        has trained since."""
        self._looks = 0
        self._taken: dict[int, _Taken] = {}
        self._undo: list[Callable[[], None]] = []
        self.averaged = AveragedWeights(lambda: self.quiet(), self._trained)
        self.stores = OverwrittenStores(lambda: self.quiet())
        self.inputs = GivenInputs(lambda: self.quiet())

    def of_model(self, model: torch.nn.Module) -> None:
        """This is what is trained."""
        self._model, self.before = weakref.ref(model), None

    def close(self) -> None:
        """Takes the wrappers away, and lets go of everything."""
        while self._undo:
            self._undo.pop()()
        self.facts = self.told
        self.averaged.close()
        self.stores.close()
        self.inputs.close()
        self._model, self._iterator, self.before, self._taken = None, None, None, {}

    # -- validation --------------------------------------------------------------------------------

    def trains(self) -> None:
        """Some loop does, at this moment: what was drawn before is no validation."""
        self.before = None
        self.averaged.trains()

    @property
    def told(self) -> AsideFacts:
        """All that was seen so far."""
        return replace(
            self.facts,
            averaged=self.averaged.facts,
            overwritten=self.stores.facts,
            turned=self.inputs.facts() or self.facts.turned,
        )

    def before_batch(self, iterator: Any) -> None:
        """A batch of data that are not trained on is about to be drawn."""
        before, self.before = self.before, None
        model, known = self._trained(), self._iterator() if self._iterator is not None else None
        if before is None or model is None or known is not iterator:
            return
        self._looks += 1
        with contextlib.suppress(Exception):  # modules of any kind
            found = _read_in_training_mode(model, before)
            if found is not None:
                own, caller = calling_places(3)
                found = replace(found, drawn_at=resolved(caller or own))
                self.facts = replace(self.facts, validation=found)

    def after_batch(self, iterator: Any) -> None:
        """It has come."""
        model = self._trained()
        if model is None or self.facts.validation is not None or self._looks >= _MOST_LOOKS:
            return
        with contextlib.suppress(Exception):  # as above
            norms = {name: int(layer.num_batches_tracked) for name, layer in _norms(model)}
            self.before = _Before(norms, _random_states(model))
            self._iterator = weakref.ref(iterator)

    def _trained(self) -> torch.nn.Module | None:
        return self._model() if self._model is not None else None

    # -- weights that are put back -----------------------------------------------------------------

    def install(self) -> None:
        """Puts the wrappers in place."""
        self._undo += [MODULE_STATE.listen(self._taking), MODULE_LOADS.listen(self._loading)]

    def _taking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def state_dict(module: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(module, *args, **kwargs)
            if not args and "destination" not in kwargs and not self.quiet():
                self._note(found)
            return found

        return state_dict

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(module: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.quiet():
                self._compare(module, state_dict)
                self.averaged.put_back()
            return original(module, state_dict, *args, **kwargs)

        return load_state_dict

    def _note(self, state: Any) -> None:
        own, caller = calling_places(3)
        with contextlib.suppress(Exception):  # dictionaries and tensors of any kind
            versions = {n: t._version for n, t in state.items() if isinstance(t, torch.Tensor)}
            if len(self._taken) >= _MOST_KEPT:
                self._taken.pop(next(iter(self._taken)))
            self._taken[id(state)] = _Taken(weakref.ref(state), caller or own, versions)

    def _compare(self, module: torch.nn.Module, state: Mapping[str, Any]) -> None:
        """Whether a module is about to load the very tensors that it has, changed since they were
        asked for."""
        taken = self._taken.get(id(state))
        known = taken is not None and taken.held() is state
        if taken is None or not known or self.facts.restored is not None:
            return
        with contextlib.suppress(Exception):  # as above
            own = dict(module.named_parameters())
            shared = [name for name, tensor in own.items() if _same_memory(tensor, state, name)]
            written = [n for n in shared if state[n]._version != taken.versions.get(n)]
            if not written or len(shared) < len(own):
                return
            inner, caller = calling_places(3)
            restored = RestoredFacts(
                model=type(module).__name__,
                tensors=len(shared),
                taken_at=resolved(taken.place),
                loaded_at=resolved(caller or inner),
            )
            self.facts = replace(self.facts, restored=restored)


def _same_memory(tensor: torch.Tensor, state: Mapping[str, Any], name: str) -> bool:
    other = state.get(name)
    return isinstance(other, torch.Tensor) and other.data_ptr() == tensor.data_ptr() != 0


def _read_in_training_mode(model: torch.nn.Module, before: _Before) -> ValidationFacts | None:
    """What the model did since `before`, when a batch had come."""
    norms = tuple(
        name for name, m in _norms(model) if int(m.num_batches_tracked) != before.norms.get(name)
    )
    dropouts: tuple[str, ...] = ()
    now = _random_states(model)
    drew = any(not torch.equal(a, b) for a, b in zip(now, before.random, strict=True))
    if not norms and drew and _all_training(model):
        dropouts = tuple(
            name
            for name, module in model.named_modules()
            if isinstance(module, DropoutBase) and module.p > 0
        )
    if not norms and not dropouts:
        return None
    return ValidationFacts(batch_norms=norms, dropouts=dropouts)


def _norms(model: torch.nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, BatchNormBase) and module.num_batches_tracked is not None
    ]


def _all_training(model: torch.nn.Module) -> bool:
    """Also what behaves alike in both modes: whoever puts dropout alone into training mode wants
    its noise."""
    return all(module.training for module in model.children()) and model.training


def _random_states(model: torch.nn.Module) -> tuple[torch.Tensor, ...]:
    """Of torch's generators that the model may draw from."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    state = RandomKeeper(device).take()
    return (state.cpu, *state.accelerators.values())
