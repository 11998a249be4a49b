"""What nanodoc uses of torch that torch does not promise to keep, all in one place.

Names of functions and classes are looked up here, once. One that this version of torch does not
have stands for an error, `MissingName`, that is raised when it is used: the look that needs it is
told as not done, and the run goes on. `ATTRIBUTES` lists the private attributes of torch's objects
that nanodoc reads in their places. `tests/instrument/test_torch_contract.py` asks of every name
whether it exists, and prints what a new version of torch has changed.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore as PrefixStore
from torch._C._distributed_c10d import Store as Store
from torch._C._distributed_c10d import TCPStore as TCPStore
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode


class MissingName(RuntimeError):
    """This version of torch has no such private name."""


class _Missing:
    """Stands for a name that torch does not have."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise MissingName(f"torch {torch.__version__} has no {self._path}")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)

    def __get__(self, owner: Any, kind: Any = None) -> _Missing:
        return self


NAMES: dict[str, str] = {}
"""The path of each name below, by the name that it has here."""


def resolve(path: str) -> Any:
    """What stands at a dotted path below torch. Raises AttributeError or ImportError where there is
    nothing."""
    parts = path.split(".")
    # the innermost module first: a package may hold a function of the same name as a module
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        try:
            found: Any = sys.modules.get(module) or importlib.import_module(module)
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ImportError(f"there is no {path}")


def _named(name: str, path: str) -> Any:
    NAMES[name] = path
    try:
        return resolve(path)
    except (AttributeError, ImportError):
        return _Missing(path)


# -- autograd and modes ----------------------------------------------------------------------------

current_autograd_node = _named("current_autograd_node", "torch._C._current_autograd_node")
"""The node whose backward runs in this thread; None outside of a backward pass."""
sequence_number = _named("sequence_number", "torch._C._autograd._get_sequence_nr")
"""How many nodes this thread has made so far."""
engine_run_backward = _named("engine_run_backward", "torch.autograd.graph._engine_run_backward")
set_grad_enabled = _named("set_grad_enabled", "torch._C._set_grad_enabled")
"""What torch.no_grad, torch.enable_grad and torch.set_grad_enabled all call."""
is_any_autocast_enabled = _named("is_any_autocast_enabled", "torch._C._is_any_autocast_enabled")
function_modes = _named("function_modes", "torch.overrides._get_current_function_mode_stack")
disabled_torch_function = _named(
    "disabled_torch_function", "torch._C._disabled_torch_function_impl"
)
DisableTorchFunction = _named("DisableTorchFunction", "torch._C.DisableTorchFunction")
DisableTorchDispatch = _named("DisableTorchDispatch", "torch._C._DisableTorchDispatch")
DisableAutocast = _named("DisableAutocast", "torch._C._DisableAutocast")
push_mode = _named("push_mode", "torch.utils._python_dispatch._push_mode")
pop_mode = _named("pop_mode", "torch.utils._python_dispatch._pop_mode")
mode_stack = _named("mode_stack", "torch.utils._python_dispatch._get_current_dispatch_mode_stack")

# -- tensors ---------------------------------------------------------------------------------------

foreach_norm = _named("foreach_norm", "torch._foreach_norm")
foreach_copy_ = _named("foreach_copy_", "torch._foreach_copy_")
foreach_sub = _named("foreach_sub", "torch._foreach_sub")
flatten_dense_tensors = _named("flatten_dense_tensors", "torch._utils._flatten_dense_tensors")
is_functorch_wrapped = _named(
    "is_functorch_wrapped", "torch._C._functorch.is_functorch_wrapped_tensor"
)
may_swap_data = _named("may_swap_data", "torch._has_compatible_shallow_copy_type")
"""Whether `tensor.data = new` is possible, as Module.to asks."""
privateuse1_name = _named("privateuse1_name", "torch._C._get_privateuse1_backend_name")


def local_shape_and_offset(*args: Any) -> Any:
    """The part of a DTensor that this rank holds, by the shape, mesh and placements of the whole.
    Its module is imported when it is asked for."""
    return resolve(LAZY["local_shape_and_offset"])(*args)


def innermost_backend(callback: Any) -> Any:
    """The backend that a context of torch.compile compiles with, by the callback of the context."""
    return resolve(LAZY["innermost_backend"])(callback)


LAZY = {
    "local_shape_and_offset": (
        "torch.distributed.tensor._utils.compute_local_shape_and_global_offset"
    ),
    "innermost_backend": "torch._dynamo.eval_frame.innermost_backend",
    # `CompiledParts` listens to it: a compiled callable calls it before what was compiled
    "callback_from_stance": "torch._dynamo.eval_frame._callback_from_stance",
}

# -- modules and data ------------------------------------------------------------------------------

BatchNormBase = _named("BatchNormBase", "torch.nn.modules.batchnorm._BatchNorm")
NormBase = _named("NormBase", "torch.nn.modules.batchnorm._NormBase")
DropoutBase = _named("DropoutBase", "torch.nn.modules.dropout._DropoutNd")
LoaderIterator = _named("LoaderIterator", "torch.utils.data.dataloader._BaseDataLoaderIter")
MapFetcher = _named("MapFetcher", "torch.utils.data._utils.fetch._MapDatasetFetcher")
worker = _named("worker", "torch.utils.data._utils.worker")
spawned = _named("spawned", "torch.multiprocessing.spawn._wrap")


# The private functions of torch.nn.utils.clip_grad that `taps` listens to are in its table.
ATTRIBUTES: dict[str, str] = {
    "_version": "torch.Tensor",
    "_cdata": "torch.Tensor",
    "_is_view": "torch.Tensor",
    "_base": "torch.Tensor",
    "_is_zerotensor": "torch.Tensor",
    "_local_tensor": "torch.distributed.tensor.DTensor",
    "_schema": "torch.ops.aten.add.Tensor",
    "_scale": "torch.amp.GradScaler",
    "_growth_tracker": "torch.amp.GradScaler",
    "_per_optimizer_states": "torch.amp.GradScaler",
    "_enabled": "torch.autocast",
    "_index_sampler": "torch.utils.data.DataLoader",
    "_next_index": "torch.utils.data.dataloader._BaseDataLoaderIter",
    "_collate_fn": "a loader's iterator",
    "_dataset": "a loader's iterator",
    "_num_workers": "a loader's iterator",
    "_persistent_workers": "a loader's iterator",
    "_num_yielded": "a loader's iterator",
    "_worker_init_fn": "a loader's iterator with workers",
    "_workers": "a loader's iterator with workers",
    "_in_order": "a loader's iterator with workers",
    "_worker_info": "torch.utils.data._utils.worker",
    "_sequence_nr": "a node of autograd",
    "_input_metadata": "a node of autograd",
    "_saved_other": "a node of autograd",
    "_saved_target": "a node of autograd",
    "_saved_weight": "a node of autograd",
    "_saved_reduction": "a node of autograd",
    "_saved_ignore_index": "a node of autograd",
    "_forward_cls": "the node of a torch.autograd.Function",
    "_comm_hooks": "torch.nn.parallel.DistributedDataParallel",
    "_get_ddp_logging_data": "torch.nn.parallel.DistributedDataParallel",
    "_use_python_reducer": "torch.nn.parallel.DistributedDataParallel",
    "_reset_state": "the reducer of a DistributedDataParallel",
    "_get_default_group": "torch.distributed.distributed_c10d",
    "_get_default_store": "torch.distributed.distributed_c10d",
    "_world": "torch.distributed.distributed_c10d",
    "_get_backend": "torch.distributed.ProcessGroup",
    "_device_types": "torch.distributed.ProcessGroup",
    "_get_sequence_number_for_group": "torch.distributed.ProcessGroup",
    "_fsdp_flattened": "a parameter of FullyShardedDataParallel",
    "_unpadded_unsharded_size": "a parameter of FullyShardedDataParallel",
    "_orig_mod": "torch._dynamo.eval_frame.OptimizedModule",
    "_torchdynamo_orig_callable": "torch._dynamo.eval_frame.OptimizedModule",
    "_step_count": "torch.optim.lr_scheduler.LRScheduler",
    "_c10d_functional": "torch.ops",
    "_is_compiled": "torch.xpu",
}
"""Private attributes of torch's objects that nanodoc reads, and whose they are."""
