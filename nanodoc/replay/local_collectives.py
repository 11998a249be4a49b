"""One rank by itself: when its run is over, steps are run again without a word to the other ranks,
which may be gone or elsewhere, and without a write to memory that other processes read.

What a rank computes so is its own: gradients before the all-reduce, of its own batch.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nanodoc.instrument.taps import at
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.own_memory import OwnMemory
from nanodoc.replay.weight_history import WeightHistory
from nanodoc.tensors.nested import tensor_leaves
from nanodoc.tensors.plain import is_plain, is_sharded, local_of, without_values

# Of each collective, which argument holds the result, and which the rank's own part that stands in
# for everybody's.
_IN_PLACE = ("all_reduce", "broadcast", "reduce", "broadcast_object_list", "all_reduce_coalesced")
_SILENT = (
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
)
_STEPS, _LARGEST_BATCH = 4, 16 << 20
_LARGEST = 1 << 30  # bytes of parameters that are read for a comparison


class LocalCollectives:
    """`begin` takes the rank out of the group, and its tensors out of shared memory; `end` puts
    both back."""

    def __init__(self, recipe: Recipe) -> None:
        self._model = recipe.model
        self._memory = OwnMemory(recipe)
        self._originals: list[tuple[Any, str, Any]] = []
        self._undo: list[Callable[[], None]] = []

    def begin(self, *, broken_off: bool = True) -> None:
        """From now on DDP reduces nothing and every collective gives back the rank's own part.
        `broken_off`: the last step may not have come to its end."""
        self._memory.begin()
        if self._originals or self._undo:
            return
        # also in a group of one, whose DDP would wait for gradients as any other
        for module in self._model.modules():
            if isinstance(module, DistributedDataParallel):
                # its forward is then the wrapped module's
                self._patch(module, "_use_python_reducer", True)
                # A step that broke off left it waiting for gradients. After a whole one it would
                # forget their order, which the other ranks ask for in their next step.
                if broken_off:
                    module.reducer._reset_state()
        if not several_ranks():
            return
        for owner in (dist, dist.distributed_c10d):
            for name in _IN_PLACE:
                self._stand_in(owner, name, lambda *args, **kwargs: None)
            for name in _SILENT:
                self._stand_in(owner, name, lambda *args, **kwargs: None)
            self._stand_in(owner, "all_gather", _all_gather)
            self._stand_in(owner, "all_gather_object", _all_gather_object)
            self._stand_in(owner, "all_gather_into_tensor", _all_gather_into_tensor)
            self._stand_in(owner, "reduce_scatter_tensor", _reduce_scatter_tensor)
            self._stand_in(owner, "reduce_scatter", _reduce_scatter)
            self._stand_in(owner, "all_to_all_single", _all_to_all_single)
            self._stand_in(owner, "all_to_all", _all_to_all)
            self._stand_in(owner, "all_gather_coalesced", _all_to_all)
            self._stand_in(owner, "gather", _gather)
            self._stand_in(owner, "gather_object", _gather_object)
            self._stand_in(owner, "scatter", _scatter)

    @contextlib.contextmanager
    def while_inside(self) -> Iterator[None]:
        """From `begin` to `end`."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        if self._originals or self._undo:
            for module in map(_looks_for_unused, self._model.modules()):
                # Backward passes that DDP did not reduce count as those of no_sync(): the next one
                # would take what they used for used. Buckets are not rebuilt here, which is what
                # else is forgotten.
                if module is not None:
                    module.reducer._reset_state()
        for owner, name, original in reversed(self._originals):
            setattr(owner, name, original)
        self._originals = []
        while self._undo:
            self._undo.pop()()
        self._memory.end()

    def _stand_in(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        if hasattr(owner, name):

            def local(*args: Any, **kwargs: Any) -> Any:
                waits = kwargs.pop("async_op", False)
                kwargs.pop("group", None)
                function(*args, **kwargs)
                if name == "batch_isend_irecv":
                    return [_Done() for _ in args[0]]
                return _Done() if waits or name in ("isend", "irecv") else None

            self._undo.append(at(owner, name).listen(lambda original: local))

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        self._originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)


def accumulates_unused(model: torch.nn.Module) -> bool:
    """The last forward pass was one under `no_sync()` of a DistributedDataParallel that looks for
    unused parameters: which ones it used is kept where nothing can read it, and would be lost."""
    found = map(_looks_for_unused, model.modules())
    return any(module is not None and not module.require_forward_param_sync for module in found)


def _looks_for_unused(module: torch.nn.Module) -> DistributedDataParallel | None:
    if isinstance(module, DistributedDataParallel) and module.find_unused_parameters:
        return None if module.static_graph else module
    return None


class _Done:
    """A collective that is through."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _all_gather(tensors: list[torch.Tensor], tensor: torch.Tensor, *more: Any) -> None:
    for output in tensors:
        output.copy_(tensor)


def _all_gather_object(objects: list[Any], thing: Any, *more: Any) -> None:
    objects[:] = [thing] * len(objects)


def _all_gather_into_tensor(output: torch.Tensor, tensor: torch.Tensor, *more: Any) -> None:
    output.copy_(
        tensor.repeat(output.numel() // max(tensor.numel(), 1), *[1] * (tensor.dim() - 1)).view_as(
            output
        )
    )


def _reduce_scatter_tensor(
    output: torch.Tensor, tensor: torch.Tensor, *more: Any, **options: Any
) -> None:
    output.copy_(tensor.flatten()[: output.numel()].view_as(output))


def _reduce_scatter(
    output: torch.Tensor, tensors: list[torch.Tensor], *more: Any, **options: Any
) -> None:
    output.copy_(tensors[dist.get_rank()])


def _all_to_all_single(
    output: torch.Tensor, tensor: torch.Tensor, *more: Any, **options: Any
) -> None:
    output.copy_(tensor)


def _all_to_all(outputs: list[Any], tensors: list[torch.Tensor], *more: Any) -> None:
    for output, tensor in zip(outputs, tensors, strict=False):
        for one in output if isinstance(output, list) else [output]:
            if one.shape == tensor.shape:
                one.copy_(tensor)


def _gather(
    tensor: torch.Tensor, gather_list: list[torch.Tensor] | None = None, *more: Any, **options: Any
) -> None:
    for output in gather_list or ():
        output.copy_(tensor)


def _gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, *more: Any, **options: Any
) -> None:
    if object_gather_list:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _scatter(
    tensor: torch.Tensor, scatter_list: list[torch.Tensor] | None = None, *more: Any, **options: Any
) -> None:
    if scatter_list:
        tensor.copy_(scatter_list[dist.get_rank()])


def is_grouped() -> bool:
    """A process group is there."""
    return dist.is_available() and dist.is_initialized()


def several_ranks() -> bool:
    """A process group of more than one rank is there."""
    return is_grouped() and dist.get_world_size() > 1


def replicated(model: torch.nn.Module) -> tuple[list[tuple[str, torch.nn.Parameter]], bool]:
    """(the parameters that learn and that several ranks are meant to hold alike, whether the
    training sees to it). Those of a DistributedDataParallel over all ranks, without what it was
    told to leave out; shards that other ranks hold, too, as in hybrid sharding; where there is
    neither, all parameters, of which nobody knows what they are meant to be."""
    wrappers = list(_wrappers(model))
    found: list[tuple[str, torch.nn.Parameter]] = []
    for wrapper, named in wrappers:
        # its own way of reducing, such as averaging now and then
        if _is_over_all(wrapper) and not getattr(wrapper, "_comm_hooks", None):
            found += named
    named = list(model.named_parameters())
    sharded = any(is_sharded(p) or type(p).__name__ == "FlatParameter" for _, p in named)
    if sharded and not wrappers:
        found = [(name + part, p) for name, p in named if (part := _part_held_twice(p))]
    elif not wrappers:
        found = named
    kept = [(name, p) for name, p in found if p.requires_grad and not without_values(p)]
    return kept, bool(wrappers) or sharded


def _wrappers(
    model: torch.nn.Module,
) -> Iterator[tuple[DistributedDataParallel, list[tuple[str, torch.nn.Parameter]]]]:
    """Each DistributedDataParallel with the parameters, by their names in `model`, that it was not
    told to leave out."""
    for path, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            start, left_out = f"{path}.module." if path else "module.", module.parameters_to_ignore
            named = [(n, p) for n, p in module.module.named_parameters() if n not in left_out]
            yield module, [(start + name, p) for name, p in named]


def _is_over_all(wrapper: DistributedDataParallel) -> bool:
    return dist.get_world_size(wrapper.process_group) == dist.get_world_size()


def collectives_entered() -> int | None:
    """How many this rank has entered, in all its process groups; None where a backend does not
    count."""
    try:
        groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
        return sum(int(group._get_sequence_number_for_group()) for group in groups)
    except (RuntimeError, AttributeError, TypeError):
        return None


def syncs(model: torch.nn.Module) -> bool:
    """No DistributedDataParallel of it is inside of `no_sync()`."""
    return all(wrapper.require_backward_grad_sync for wrapper, _ in _wrappers(model))


_KEEPING_APART = ("post_localSGD_hook",)
"""torch's communication hooks under which ranks step by themselves for a while."""


def held_alike(model: torch.nn.Module) -> set[str]:
    """The names of the parameters that a DistributedDataParallel over all ranks keeps the same."""
    held = (named for wrapper, named in _wrappers(model) if _is_over_all(wrapper))
    return {name for named in held for name, _ in named}


def reduced_parameters(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Those that the only DistributedDataParallel of a model reduces, in its own order, with those
    that were frozen since it was made; none where that is not known. Without one, all that learn,
    as a wrapper of the user's may count them."""
    wrappers = list(_wrappers(model))
    if len(wrappers) != 1:
        return [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    wrapper, whole = wrappers[0]
    learning = [(name, p) for name, p in whole if p.requires_grad]
    count = wrapper._get_ddp_logging_data().get("num_parameter_tensors")
    return next((named for named in (learning, whole) if len(named) == count), [])


def keeps_apart(model: torch.nn.Module) -> bool:
    """A communication hook lets the ranks' weights differ on purpose."""
    hooks = [h for wrapper, _ in _wrappers(model) for h, _ in getattr(wrapper, "_comm_hooks", ())]
    return any(getattr(hook, "__name__", "") in _KEEPING_APART for hook in hooks)


def _part_held_twice(parameter: torch.nn.Parameter) -> str:
    """Which part of a sharded parameter this rank holds, where others hold the same one; else
    nothing."""
    if not is_sharded(parameter):
        return ""
    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    sizes = [mesh.size(dim) for dim in range(mesh.ndim)]
    place = mesh.get_coordinate()
    kept = [p.is_replicate() and size > 1 for p, size in zip(placements, sizes, strict=True)]
    if place is None or not any(kept):
        return ""
    parts = [str(at) for at, whole in zip(place, kept, strict=True) if not whole]
    return f" (part {', '.join(parts)})" if parts else ""


def fingerprints(
    parameters: list[tuple[str, torch.nn.Parameter]], known: Mapping[int, str] | None = None
) -> tuple[tuple[str, str], ...]:
    """(name and shape, digest) of every parameter, () where there is more than 1 GiB of them.
    `known`: digests by the parameters' identity, which stand for the others as well."""
    held = [(name, p.shape, local_of(p)) for name, p in parameters]
    if sum(p.numel() * p.element_size() for _, _, p in held) > _LARGEST:
        return ()
    if known is None:
        return tuple((f"{name} {list(shape)}", _digest(p)) for name, shape, p in held)
    return tuple(
        (f"{name} {list(p.shape)}", known[id(p)]) for name, p in parameters if id(p) in known
    )


def batch_digests(checkpoints: WeightHistory) -> tuple[tuple[int, str], ...]:
    """(step, digest) of the batches of the last steps that are kept; those of more than 16 MiB, and
    of tensors that are not plain, are left out. So is a list of numbers alone, which may be a
    weight that the step goes over."""
    found = []
    for past in list(checkpoints.past)[-_STEPS:]:
        leaves = [tensor for _, tensor in tensor_leaves(past.batches)]
        plain = bool(leaves) and all(map(is_plain, leaves))
        plain = plain and any(t.dim() > 1 or not t.is_floating_point() for t in leaves)
        if (
            plain
            and sum(t.numel() * t.element_size() for t in leaves) <= _LARGEST_BATCH
            and past.intact
        ):
            found.append(
                (past.step, " ".join(f"{list(t.shape)} {_digest(t)}" for t in leaves if t.numel()))
            )
    return tuple(found)


def _digest(tensor: torch.Tensor) -> str:
    values = (
        tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1).view(torch.uint8)
    )
    return hashlib.blake2b(values.numpy().tobytes(), digest_size=8).hexdigest()
