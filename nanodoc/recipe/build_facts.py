"""What is known of a `build()` after it has returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from nanodoc.diagnosis.source_names import of_source
from nanodoc.facts.crash import LoadFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.torch_private import NormBase
from nanodoc.recipe.mode_calls import UndoneEval
from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.made_in import Scopes
from nanodoc.trace.spans import Place, resolved


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildFacts:
    """Places by name or by (id of the module, attribute); every module of the recipe lives as long
    as the run."""

    never_written: set[str] = field(default_factory=set)
    """Parameters and buffers whose memory came from torch.empty and was never filled."""
    parameters: Mapping[str, Place] = field(default_factory=dict)
    filled: Mapping[str, Place] = field(default_factory=dict)
    """Where the values of each parameter were last written as a whole."""
    made_by_library: set[str] = field(default_factory=set)
    """Parameters whose values a library's own code gave, at whatever line of the user's."""
    attributes: Mapping[tuple[int, str], Place] = field(default_factory=dict)
    replaced: Mapping[tuple[int, str], Place] = field(default_factory=dict)
    renewed: set[str] = field(default_factory=set)
    """Parameters that were put in the place of others."""
    made_behind: Mapping[str, Place] = field(default_factory=dict)
    """Parameters that were made after the optimizers: where the last of these was asked for, in the
    function that asked for the parameter, too."""
    makers: Scopes = field(default_factory=set)
    """The user's functions that asked for an optimizer, and what those call by a name."""
    optimizers: Mapping[int, Place] = field(default_factory=dict)
    schedulers: Mapping[int, Place] = field(default_factory=dict)
    """Where the learning rate's schedulers were made, by identity, in that order."""
    loaders: Mapping[int, Place] = field(default_factory=dict)
    """Where each DataLoader was made, by the identity of the loader and of its sampler; one that is
    gone may have left its number to another object."""
    loads: tuple[LoadFacts, ...] = ()
    """Calls of load_state_dict that left parameters of their module as they were."""
    eval_at: Mapping[int, Place] = field(default_factory=dict)
    """Where modules, by identity, were last put into eval mode."""
    undone: Mapping[int, UndoneEval] = field(default_factory=dict)
    """Modules, by identity, whose own eval() a train() of a larger part took back."""
    built: list[torch.optim.Optimizer] = field(default_factory=list)
    """Every optimizer that was made and is still alive."""
    frozen: Mapping[str, Place] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)
    """Parameters that a load_state_dict() has gone over."""
    layers: Mapping[str, Place] = field(default_factory=dict)
    casts: Mapping[str, Place] = field(default_factory=dict)
    criterion: Place | None = None
    """Where the recipe's criterion, one of torch's own layers, was made."""
    criterion_at: SourceSpan | None = None
    """Where the recipe names its criterion."""
    data_at: SourceSpan | None = None
    """Where the recipe names its data."""
    amp_at: SourceSpan | None = None
    """Where the recipe asks for mixed precision."""
    compiled: bool = False
    """torch.compile was called."""
    grad_off: Place | None = None
    """The line that switched gradients off for good."""

    def is_compiled(self, model: torch.nn.Module) -> bool:
        """Some of the training runs through torch.compile."""
        return self.compiled or any(hasattr(module, "_orig_mod") for module in model.modules())

    def and_later(self, later: BuildFacts) -> BuildFacts:
        """With what was seen of optimizers, schedulers, loaders and modes afterwards."""
        return replace(
            self,
            makers=self.makers | later.makers,
            optimizers={**self.optimizers, **later.optimizers},
            schedulers={**self.schedulers, **later.schedulers},
            loaders={**self.loaders, **later.loaders},
            eval_at={**self.eval_at, **later.eval_at},
            undone={**self.undone, **later.undone},
            frozen={**self.frozen, **later.frozen},
            built=[*self.built, *later.built],
        )

    def registered_at(self, name: str) -> SourceSpan | None:
        """The user's line that put parameter `name` into its module."""
        return resolved(self.parameters.get(name))

    def optimizer_before(self, name: str) -> SourceSpan | None:
        """The line that asked for the optimizer, if parameter `name` was made after that."""
        return resolved(self.made_behind.get(name))

    def module_made_at(self, path: str) -> SourceSpan | None:
        """The user's line that registered the parameters of the module at `path`, or of the nearest
        one around it: of a library's module, the line that makes that."""
        path = of_source(path)
        while True:
            for name in self.parameters:
                if of_source(name).startswith(f"{path}." if path else ""):
                    span = self.registered_at(name)
                    if span is not None and frame_kind(span.file) == USER:
                        return span
            if not path:
                return None
            path = path.rpartition(".")[0]

    def initialised_at(self, name: str) -> SourceSpan | None:
        """The user's line that gave parameter `name` its values."""
        return resolved(self.filled.get(name)) or self.registered_at(name)

    def assigned_at(self, module: torch.nn.Module, attribute: str) -> SourceSpan | None:
        """The line that gave a module a container, or a container its layer."""
        return resolved(self.attributes.get((id(module), attribute)))

    def replaced_at(self, missing: Iterable[str] = ()) -> list[SourceSpan]:
        """The lines that put another layer in the place of one, or one of the parameters
        `missing` in the place of another parameter."""
        places = [
            *self.replaced.values(),
            *(self.parameters[name] for name in missing if name in self.renewed),
        ]
        return [span for place in places if (span := resolved(place)) is not None]

    def optimizer_built_at(self, optimizer: torch.optim.Optimizer) -> SourceSpan | None:
        """The user's line that made `optimizer`."""
        return resolved(self.optimizers.get(id(optimizer)))

    def schedulers_built_at(self) -> tuple[SourceSpan | None, ...]:
        """The user's lines that made learning rate schedulers."""
        return tuple(resolved(place) for place in self.schedulers.values())

    def scheduler_built_at(self, scheduler: object) -> SourceSpan | None:
        """The user's line that made `scheduler`."""
        return resolved(self.schedulers.get(id(scheduler)))

    def loader_made_at(self, loader: object) -> SourceSpan | None:
        """The user's line that made `loader`, else the one that names the recipe's data."""
        return resolved(self.loaders.get(id(loader))) or self.data_at

    def made_for_loader_at(self, made: object) -> SourceSpan | None:
        """The user's line that made a part of a data set, or a weighted sampler."""
        return resolved(self.loaders.get(id(made)))

    def criterion_made_at(self) -> SourceSpan | None:
        """The line that made the recipe's criterion, else the one that names it."""
        return resolved(self.criterion) or self.criterion_at

    def frozen_at(self, name: str) -> SourceSpan | None:
        """The line that switched off requires_grad of parameter `name`."""
        return resolved(self.frozen.get(name))

    def frozen_fresh_at(self, name: str) -> SourceSpan | None:
        """The same of one whose values no checkpoint gave."""
        return None if name in self.loaded else self.frozen_at(name)

    def eval_undone(self, module: torch.nn.Module) -> tuple[SourceSpan, SourceSpan] | None:
        """(where a part of the model was put into eval mode on purpose, where train() took that
        back) of a module in it; None for a part that learns: eval() was for a look only, or
        pretrained weights came so."""
        undone = self.undone.get(id(module))
        if undone is None:
            return None
        frozen = not any(parameter.requires_grad for parameter in undone.part.parameters())
        layer = isinstance(undone.part, NormBase)
        places = resolved(undone.eval_at), resolved(undone.train_at)
        if not (frozen or layer) or places[0] is None or places[1] is None:
            return None
        return places[0], places[1]

    def layer_made_at(self, path: str) -> SourceSpan | None:
        """The line that made the layer (of torch's own kinds) at `path`."""
        return resolved(self.layers.get(path))

    def cast_at(self, name: str) -> SourceSpan | None:
        """The line that last changed the dtype of parameter `name` (`model.half()`)."""
        return resolved(self.casts.get(name))

    def grad_switched_off_at(self) -> SourceSpan | None:
        return resolved(self.grad_off)


def load_facts(
    module: torch.nn.Module,
    result: Any,
    sizes: Mapping[str, tuple[int, ...]],
    versions: Mapping[str, int],
    place: Place | None,
    loaded: set[int],
) -> LoadFacts:
    """What a load_state_dict() left out. `sizes` are those of the file's tensors; `versions` the
    parameters' counters of writes when it was over; `loaded` the parameters that any load filled.
    """
    own = {
        name: tuple(t.shape)
        for name, t in (*module.named_parameters(), *module.named_buffers())
        if not is_lazy(t)
    }
    now = {
        name: parameter for name, parameter in module.named_parameters() if not is_lazy(parameter)
    }
    left = [
        name
        for name in result.missing_keys
        # nor filled by hand since
        if name in now and id(now[name]) not in loaded and versions.get(name) == now[name]._version
    ]
    unexpected = [key for key in result.unexpected_keys if key in sizes]
    best = max(
        _renamings(own, {key: sizes[key] for key in unexpected}),
        key=lambda pair: _fitting(own, sizes, pair),
        default=("", ""),
    )
    return LoadFacts(
        module_type=type(module).__name__,
        location=resolved(place),
        own=len(own),
        given=len(sizes),
        matched=len(own) - len(result.missing_keys),
        left=tuple(left),
        unexpected=tuple(unexpected),
        prefix=best[0],
        instead=best[1],
        would_match=_fitting(own, sizes, best) if any(best) else 0,
    )


def _renamings(
    own: Mapping[str, tuple[int, ...]], unexpected: Mapping[str, tuple[int, ...]]
) -> list[tuple[str, str]]:
    """(prefix in the file, prefix in the module) that would make names of tensors of one shape the
    same, the most frequent few."""
    votes: Counter[tuple[str, str]] = Counter()
    for key, size in unexpected.items():
        for name, shape in own.items():
            if shape == size and key != name and key.rpartition(".")[2] == name.rpartition(".")[2]:
                theirs, ours = key.split("."), name.split(".")
                while theirs and ours and theirs[-1] == ours[-1]:
                    theirs.pop()
                    ours.pop()
                votes[".".join([*theirs, ""]), ".".join([*ours, ""])] += 1
    return [pair for pair, _ in votes.most_common(8)]


def renamed(key: str, prefix: str, instead: str) -> str:
    """The file's name for a tensor with its prefix replaced."""
    return instead + key.removeprefix(prefix) if key.startswith(prefix) else key


def _fitting(
    own: Mapping[str, tuple[int, ...]], sizes: Mapping[str, tuple[int, ...]], pair: tuple[str, str]
) -> int:
    return sum(own.get(renamed(key, *pair)) == size for key, size in sizes.items())
