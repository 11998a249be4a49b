"""What `build()` did, seen from outside: where parameters, layers and optimizers were made, what
was frozen or loaded, and memory nobody ever wrote to.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler, Subset, WeightedRandomSampler

from nanodoc.instrument.originals import ours
from nanodoc.instrument.taps import at
from nanodoc.instrument.torch_private import TorchDispatchMode
from nanodoc.recipe.build_facts import BuildFacts, load_facts
from nanodoc.recipe.build_order import BuildOrder, KeptAlive
from nanodoc.recipe.mode_calls import ModeCalls
from nanodoc.trace.ops import call_op, describe_op, written_by
from nanodoc.trace.spans import Place, calling_places

# Tensor methods through which NumPy and C code get at the memory.
_EXPORTS = ("numpy", "__array__", "data_ptr", "__dlpack__")
_CASTS = ("half", "bfloat16", "float", "double", "to", "type")
_FILLS = ("aten.zero_", "aten.fill_", "aten.normal_", "aten.uniform_")
_CONTAINERS = (list, tuple, dict, set)
_ABSENT = object()


class BuildWatch(TorchDispatchMode):
    """Active during the import of the user's file and its `build()`; changes nothing of what they
    compute."""

    def __init__(self, *, memory: bool = True) -> None:
        """With `memory`, memory that nobody writes to is found: every op is looked at."""
        super().__init__()
        self._memory = memory
        self._unwritten: dict[int | None, torch.UntypedStorage] = {}
        self._parameters: dict[tuple[int, str], Place] = {}
        self._inside: set[tuple[int, str]] = set()  # parameters of a library's own modules
        self._filled: dict[int | None, tuple[StorageWeakRef, Place, bool]] = {}
        self._attributes: dict[tuple[int, str], Place] = {}
        self._replaced: dict[tuple[int, str], Place] = {}
        self._renewed: set[tuple[int, str]] = set()
        self._optimizers: dict[int, Place] = {}
        self._order = BuildOrder()
        self._schedulers: dict[int, Place] = {}
        self._loaders: dict[int, Place] = {}
        self._loads: list[tuple[torch.nn.Module, Any, Any, dict[str, int], Place | None]] = []
        self._modes = ModeCalls()
        self._built: list[weakref.ref[torch.optim.Optimizer]] = []
        self._frozen: dict[int, Place] = {}
        self._loaded: set[int] = set()
        self._layers: dict[int, Place] = {}
        self._casts: dict[int, Place] = {}
        self._grad_off: Place | None = None
        self._compiled = False
        self._alive = KeptAlive()
        self._undo: list[Callable[[], None]] = []
        self._flag_before: Any = _ABSENT

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in Tracer: no dynamo import for a run that compiles nothing

    # -- watching ----------------------------------------------------------------------------------

    def __enter__(self) -> BuildWatch:
        module, optimizer, tensor = torch.nn.Module, torch.optim.Optimizer, torch.Tensor
        for name in _EXPORTS:
            self._listen(tensor, name, self._exporting)
        self._listen(module, "register_parameter", self._registering)
        self._listen(module, "__setattr__", self._assigning)
        self._listen(module, "add_module", self._adding)
        self._listen(module, "__init__", self._making)
        for name in _CASTS:
            self._listen(module, name, self._casting)
        self._listen(module, "train", self._modes.watching)
        self._listen(module, "load_state_dict", self._loading)
        self._listen(optimizer, "__init__", self._optimizing)
        self._listen(DataLoader, "__init__", self._loading_data)
        for made, table in (
            (Subset, self._loaders),
            (WeightedRandomSampler, self._loaders),
            (DistributedSampler, self._loaders),
            (LRScheduler, self._schedulers),
            (ReduceLROnPlateau, self._schedulers),
        ):
            self._listen(made, "__init__", partial(self._noting, table=table))
        self._listen(tensor, "requires_grad_", self._freezing)
        # a property, which is read and written and not called
        self._flag_before = vars(tensor).get("requires_grad", _ABSENT)
        tensor.requires_grad = self._flag(tensor.requires_grad)  # type: ignore[assignment]  # put back in __exit__
        self._listen(torch, "compile", self._compiling)
        self._listen(module, "compile", self._compiling)
        self._listen(torch.set_grad_enabled, "__init__", self._switching)
        if self._memory:
            super().__enter__()
        else:  # without a dispatch mode, those that are called by their names
            for name in _FILLS:
                filling = partial(self._filling, name=name)
                self._listen(tensor, name.removeprefix("aten."), filling)
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._flag_before is _ABSENT:  # inherited from the C base class
            del torch.Tensor.requires_grad
        else:
            torch.Tensor.requires_grad = self._flag_before
        while self._undo:
            self._undo.pop()()
        if self._memory:
            super().__exit__(*exc)

    def _listen(self, owner: Any, name: str, listener: Callable[[Any], Any]) -> None:
        self._undo.append(at(owner, name).listen(listener))

    @ours
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = call_op(func, args, kwargs or {})
        op = describe_op(func)
        if op.silent:
            if isinstance(out, torch.Tensor) and out.device.type != "meta":
                storage = out.untyped_storage()
                # held, so that its address is not used again
                self._unwritten[storage._cdata] = storage
        elif self._unwritten or op.name.startswith(_FILLS):
            for tensor in written_by(op, args, kwargs):
                self._unwritten.pop(_storage(tensor), None)
                self._note_fill(op.name, tensor)
        return out

    def _note_fill(self, name: str, tensor: torch.Tensor) -> None:
        """Where memory was filled as a whole: it may be a parameter's, or become one's."""
        if name.startswith(_FILLS) and tensor.is_floating_point() and tensor.dim() > 1:
            mine, caller = calling_places(3)
            place = caller or mine
            if place is not None:
                memory = StorageWeakRef(tensor.untyped_storage())
                self._filled[_storage(tensor)] = memory, place, caller is None

    def _note(self, table: dict[Any, Place], key: Any, owner: Any) -> None:
        mine, caller = calling_places(2)
        place = caller or mine
        if place is not None:
            table[key] = place
            # an id stays unique only while its object lives; one optimizer's is told anew by the
            # next, and one that is thrown away is to go
            if not isinstance(owner, torch.optim.Optimizer):
                self._alive.append(owner)

    # -- the wrappers ------------------------------------------------------------------------------

    def _filling(self, original: Callable[..., Any], name: str) -> Any:
        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            out = original(tensor, *args, **kwargs)
            if tensor.layout is torch.strided and tensor.device.type != "meta":
                self._note_fill(name, tensor)
            return out

        return method

    def _exporting(self, original: Callable[..., Any]) -> Any:
        """A tensor method that hands out the memory itself: from then on it may be written
        unseen."""

        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._unwritten.pop(_storage(tensor), None)
            return original(tensor, *args, **kwargs)

        return method

    def _registering(self, original: Callable[..., Any]) -> Any:
        def register_parameter(module: torch.nn.Module, name: str, param: Any) -> None:
            known = (vars(module).get("_parameters") or {}).get(name)
            original(module, name, param)
            self._note(self._parameters, (id(module), name), module)
            self._order.registered((id(module), name))
            if calling_places(1)[1] is not None:
                self._inside.add((id(module), name))
            if known is not None and known is not param:
                self._renewed.add((id(module), name))

        return register_parameter

    def _assigning(self, original: Callable[..., Any]) -> Any:
        def assign(module: torch.nn.Module, name: str, value: Any) -> None:
            children = module.__dict__.get("_modules")
            # TorchScript keeps another mapping
            known = children.get(name) if isinstance(children, dict) else None
            original(module, name, value)
            if isinstance(value, _CONTAINERS) or name == "requires_grad":
                self._note(self._attributes, (id(module), name), module)
            if isinstance(value, torch.nn.Module) and known is not None and known is not value:
                self._note(self._replaced, (id(module), name), module)

        return assign

    def _adding(self, original: Callable[..., Any]) -> Any:
        def add_module(module: torch.nn.Module, name: str, child: Any) -> None:
            original(module, name, child)
            self._note(self._attributes, (id(module), name), module)

        return add_module

    def _making(self, original: Callable[..., Any]) -> Any:
        def init(module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            # a layer: the line that made it says how it was set up
            if type(module).__module__.startswith("torch.nn."):
                self._note(self._layers, id(module), module)

        return init

    def _casting(self, original: Callable[..., Any]) -> Any:
        """`model.half()` and its kin: which parameters changed their dtype there."""

        def cast(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            before = {id(p): p.dtype for p in module.parameters()}
            out = original(module, *args, **kwargs)
            for parameter in module.parameters():
                if before.get(id(parameter), parameter.dtype) != parameter.dtype:
                    self._note(self._casts, id(parameter), parameter)
            return out

        return cast

    def _loading(self, original: Callable[..., Any]) -> Any:
        def load_state_dict(
            module: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any
        ) -> Any:
            out = original(module, state_dict, *args, **kwargs)
            self._alive.append(module)
            missing = set(getattr(out, "missing_keys", ()))
            self._loaded.update(
                id(parameter)
                for name, parameter in module.named_parameters()
                if name not in missing
            )
            if missing:
                mine, caller = calling_places(1)
                sizes = {
                    str(key): tuple(value.shape)
                    for key, value in state_dict.items()
                    if isinstance(value, torch.Tensor)
                }
                versions = {
                    name: parameter._version
                    for name, parameter in module.named_parameters()
                    if not is_lazy(parameter)
                }
                self._loads.append((module, out, sizes, versions, caller or mine))
            return out

        return load_state_dict

    def _optimizing(self, original: Callable[..., Any]) -> Any:
        def init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            self._note(self._optimizers, id(optimizer), optimizer)
            self._order.made_optimizer(id(optimizer))
            self._built.append(weakref.ref(optimizer))
            original(optimizer, *args, **kwargs)

        return init

    def _loading_data(self, original: Callable[..., Any]) -> Any:
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            self._note(self._loaders, id(loader), loader)
            original(loader, *args, **kwargs)
            if id(loader) in self._loaders:  # an iterator has the sampler, and not the loader
                self._loaders[id(loader._index_sampler)] = self._loaders[id(loader)]

        return init

    def _noting(self, original: Callable[..., Any], table: dict[int, Place]) -> Any:
        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            self._note(table, id(made), made)
            original(made, *args, **kwargs)

        return init

    def _freezing(self, original: Callable[..., Any]) -> Any:
        def requires_grad_(tensor: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
            out: torch.Tensor = original(tensor, requires_grad)
            self._note_flag(tensor, requires_grad)
            return out

        return requires_grad_

    def _flag(self, original: Any) -> property:
        """`tensor.requires_grad = False`, written down."""

        def read(tensor: torch.Tensor) -> Any:
            return original.__get__(tensor)

        def write(tensor: torch.Tensor, value: bool) -> None:
            original.__set__(tensor, value)
            self._note_flag(tensor, value)

        return property(read, write)

    def _note_flag(self, tensor: torch.Tensor, trainable: bool) -> None:
        if not trainable and isinstance(tensor, torch.nn.Parameter):
            self._note(self._frozen, id(tensor), tensor)

    def _compiling(self, original: Callable[..., Any]) -> Any:
        def compile_(*args: Any, **kwargs: Any) -> Any:
            self._compiled = True
            return original(*args, **kwargs)

        return compile_

    def _switching(self, original: Callable[..., Any]) -> Any:
        def init(switch: Any, mode: bool) -> None:
            original(switch, mode)
            if not mode:
                mine, caller = calling_places(1)
                self._grad_off = caller or mine

        return init

    # -- what is left ------------------------------------------------------------------------------

    def settle(self, model: torch.nn.Module, criterion: Any = None) -> BuildFacts:
        """What is known once `build()` has returned them; lets go of everything else."""
        never = {name for name, tensor in _named(model) if _storage(tensor) in self._unwritten}
        owned = {
            f"{path}.{name}".lstrip("."): (id(module), name)
            for path, module in model.named_modules()
            for name, _ in module._parameters.items()  # TorchScript's is no dict
        }
        modules = {id(module) for module in model.modules()}
        criterion = getattr(criterion, "_orig_mod", criterion)  # a compiled one's own
        if len(self._built) > 1:
            gc.collect()  # an optimizer that was thrown away stands in a cycle with its hooks
        fills = {
            name: self._filled[key][1:]
            for name, p in model.named_parameters()
            # the memory of one that is gone may have been given out again
            if (key := _storage(p)) in self._filled and not self._filled[key][0].expired()
        }
        alive = [optimizer for ref in self._built if (optimizer := ref()) is not None]
        built = [id(optimizer) for optimizer in alive]
        facts = BuildFacts(
            never_written=never,
            parameters={n: self._parameters[k] for n, k in owned.items() if k in self._parameters},
            made_behind=self._order.behind(owned, built),
            renewed={name for name, key in owned.items() if key in self._renewed},
            filled={name: place for name, (place, _) in fills.items()},
            made_by_library={
                n for n, k in owned.items() if not fills.get(n, (None, k not in self._inside))[1]
            },
            attributes={key: place for key, place in self._attributes.items() if key[0] in modules},
            replaced={key: place for key, place in self._replaced.items() if key[0] in modules},
            makers=self._order.makers(),
            optimizers=dict(self._optimizers),
            schedulers=dict(self._schedulers),
            loaders=dict(self._loaders),
            # also those of frozen encoders and references, which the model need not hold
            loads=tuple(load_facts(*load, self._loaded) for load in self._loads),
            eval_at={k: place for k, place in self._modes.eval_at.items() if k in modules},
            undone={k: undone for k, undone in self._modes.undone.items() if k in modules},
            built=alive,
            frozen={
                n: self._frozen[id(p)] for n, p in model.named_parameters() if id(p) in self._frozen
            },
            loaded={name for name, p in model.named_parameters() if id(p) in self._loaded},
            layers={
                n: self._layers[id(m)] for n, m in model.named_modules() if id(m) in self._layers
            },
            criterion=self._layers.get(id(criterion))
            if isinstance(criterion, torch.nn.Module)
            else None,
            casts={
                n: self._casts[id(p)] for n, p in model.named_parameters() if id(p) in self._casts
            },
            compiled=self._compiled,
            grad_off=self._grad_off if not torch.is_grad_enabled() else None,
        )
        self._unwritten, self._alive, self._loads = {}, KeptAlive(), []
        self._modes = ModeCalls()
        return facts


def _named(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def _storage(tensor: torch.Tensor) -> int | None:
    if is_lazy(tensor) or tensor.layout != torch.strided:
        return None
    return int(tensor.untyped_storage()._cdata)
