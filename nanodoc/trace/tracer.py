"""The op-level tracer: one dispatch mode over forward, backward and optimizer.

Invariants: it keeps names, indices and 0-dim statistics, never the user's tensors, so its memory grows with the number
of ops and not with the activations; and it draws no random numbers and writes to no tensor of the run.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from nanodoc.trace.examine import OpDetail, Request, examine_call
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.ops import OpInfo, describe_op, outputs_of, tensors_in, written_by
from nanodoc.trace.spans import calling_places

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER = "forward", "backward", "recompute", "optimizer"

# The state of a storage as an op saw it: its writers' list and how many had written by then.
Ref = tuple[list[int], int]

_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]  # not in its __all__
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_Tensor = torch.Tensor
_STATISTICS = {torch.float32, torch.float64, torch.bfloat16}  # dtypes whose sum only overflows where float32 does


class Record(NamedTuple):
    """One op call. `inputs` follow the order of the tensor arguments, lists flattened."""

    info: OpInfo
    inputs: tuple[Ref, ...]
    phase: str
    node: str | None
    sequence: int
    module: int
    place: tuple[CodeType, int] | None
    caller: tuple[CodeType, int] | None
    statistic: int
    """Index of its first statistic, −1 when it has none."""
    statistics: int
    overwrites: bool
    """A write that covers the whole storage: what was there before is gone."""


class Tracer(TorchDispatchMode):
    """Traces everything run inside `with tracer:`; `finish()` then gives the `StepTrace`.

    `requests` maps the index of an op (from an earlier trace of the same step) to what is to be examined there.
    `leaves` are (name, tensor) pairs: parameters, buffers, the batch. `watch_optimizer` also takes statistics
    inside `Optimizer.step`, where a healthy step has hundreds of small ops that need none.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        leaves: Iterable[tuple[str, torch.Tensor]],
        requests: dict[int, Request] | None = None,
        *,
        watch_optimizer: bool = False,
    ) -> None:
        super().__init__()
        self._records: list[Record] = []
        self._finite: list[bool] = []  # per statistic
        self._pending: dict[int, torch.Tensor] = {}  # statistics that are still on a device
        self._writers: dict[int, list[int]] = {}
        self._leaf_names: list[str] = []
        self._marks: dict[str, Ref] = {}
        self._requests = requests or {}
        self._details: dict[int, OpDetail] = {}
        self._watch_optimizer = watch_optimizer
        self._in_optimizer = False
        self._paused = False
        self._modules: list[tuple[str, str]] = []
        self._module_ids: dict[int, int] = {}
        self._stack: list[int] = []
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            self._module_ids[id(module)] = len(self._modules)
            self._modules.append((name, type(module).__name__))
        for name, tensor in leaves:
            storage = _storage(tensor)
            if storage is not None and storage not in self._writers:  # a tied weight keeps its first name
                self._writers[storage] = [self._new_leaf(name)]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this torch wraps `__torch_dispatch__` in `torch._dynamo.disable`, which costs two calls per op and an
        import of dynamo. Traced steps run eagerly (`set_stance`), so there is nothing to disable."""
        return False

    # -- entering and leaving ------------------------------------------------------------------------------------

    def __enter__(self) -> Tracer:
        hooks = torch.nn.modules.module
        try:
            self._handles = [
                hooks.register_module_forward_pre_hook(self._enter_module),
                hooks.register_module_forward_hook(self._leave_module, always_call=True),
                register_optimizer_step_pre_hook(self._enter_optimizer),
                register_optimizer_step_post_hook(self._leave_optimizer),
            ]
            return super().__enter__()  # type: ignore[no-any-return]  # unannotated in torch
        except BaseException:
            self._remove_hooks()
            raise

    def __exit__(self, *exc: Any) -> None:
        try:
            super().__exit__(*exc)
        finally:
            self._remove_hooks()

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        self._stack.append(self._module_ids.get(id(module), -1))

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        # An exception can leave inner modules on the stack: drop down to this one.
        index = self._module_ids.get(id(module), -1)
        while self._stack and self._stack.pop() != index:
            pass

    def _enter_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._in_optimizer = True

    def _leave_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._in_optimizer = False

    # -- what the engine tells ---------------------------------------------------------------------------------

    def mark(self, name: str, tensor: torch.Tensor) -> None:
        """Remembers who wrote `tensor` up to now, so that a slice can start from it."""
        storage = _storage(tensor)
        writers = self._writers.get(storage, []) if storage is not None else []
        self._marks[name] = (writers, len(writers))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Ops inside are run but not recorded: our own looks at the step."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def finish(self) -> StepTrace:
        """Reads every statistic with one copy per device and dtype, and returns the trace."""
        groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for position, value in self._pending.items():
            groups.setdefault((value.device, value.dtype), []).append(position)
        for positions in groups.values():
            flags = torch.isfinite(torch.stack([self._pending[position] for position in positions])).tolist()
            for position, flag in zip(positions, flags, strict=True):
                self._finite[position] = flag
        self._pending = {}
        finite = self._finite
        bad = [not all(finite[r.statistic : r.statistic + r.statistics]) for r in self._records]
        return StepTrace(self._records, bad, self._marks, self._leaf_names, self._modules, self._details)

    # -- the hot path --------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._paused:
            return func(*args, **(kwargs or {}))
        info = describe_op(func)
        index = len(self._records)
        inputs = tensors_in(args)
        if kwargs:
            inputs += tensors_in(kwargs.values())
        writers = self._writers
        refs: list[Ref] = []
        seen = []
        for tensor in inputs:
            storage = _storage(tensor)
            seen.append(storage)
            if storage is None:
                refs.append(([], 0))
                continue
            known = writers.get(storage)
            if known is None:  # made where no op could be seen: from_numpy, a tensor of an enclosing scope
                known = writers[storage] = [self._new_leaf("constant")]
            refs.append((known, len(known)))

        quiet = self._in_optimizer and not self._watch_optimizer  # a healthy step has hundreds of these
        place, caller = (None, None) if quiet else calling_places(2)
        node = None if quiet else _current_node()
        if node is None:
            phase, node_name, sequence = OPTIMIZER if self._in_optimizer else FORWARD, None, _sequence_number() - 1
        elif place is not None and torch.is_grad_enabled():
            # the user's forward code, run again inside backward by activation checkpointing
            phase, node_name, sequence = RECOMPUTE, None, _sequence_number() - 1
        else:
            phase, node_name, sequence = BACKWARD, node.name(), node._sequence_nr()
        module = self._stack[-1] if self._stack else -1

        request = self._requests.get(index)
        try:
            if request is None:
                out = func(*args, **kwargs) if kwargs else func(*args)
            else:
                out, self._details[index] = examine_call(func, args, kwargs or {}, inputs, request)
        except BaseException:
            self._records.append(Record(info, tuple(refs), phase, node_name, sequence, module, place, caller, 0, 0, False))
            raise

        first, overwrites = len(self._finite), False
        outputs = outputs_of(out)
        if info.writes:
            written = written_by(info, args, kwargs)
            overwrites = self._note_writes(written, index)
            outputs = outputs or written  # foreach and GradScaler ops return nothing
        for tensor in () if quiet and info.writes else outputs:
            storage = _storage(tensor)
            if not info.writes and storage is not None and storage not in seen:
                writers[storage] = [index]
                overwrites = True
            if not (quiet or info.silent or info.view):
                self._take_statistic(tensor)
        count = len(self._finite) - first
        self._records.append(Record(info, tuple(refs), phase, node_name, sequence, module, place, caller, first, count, overwrites))
        return out

    def _note_writes(self, written: list[torch.Tensor], index: int) -> bool:
        """Appends this op to the writers of each tensor it mutated; True if all of them were covered whole."""
        whole = True
        for tensor in written:
            storage = _storage(tensor)
            if storage is not None:
                self._writers.setdefault(storage, []).append(index)
                whole &= tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
        return whole

    def _take_statistic(self, tensor: torch.Tensor) -> None:
        """A number or two that are non-finite if any element is; a finite float32 tensor whose sum overflows is looked
        at again when its op is examined."""
        if not tensor.is_floating_point():
            if not tensor.is_complex():
                return
            tensor = torch.view_as_real(tensor.resolve_conj())
        if tensor.numel() == 0:
            return
        try:
            # the sum of a float16 tensor overflows at 65504
            values = (tensor.sum(),) if tensor.dtype in _STATISTICS else torch.aminmax(tensor)
        except (RuntimeError, NotImplementedError):  # sparse and 8-bit tensors have no such reduction: not screened
            return
        for value in values:
            if value.is_cpu:  # no device to wait for
                self._finite.append(math.isfinite(value.item()))
            else:
                self._pending[len(self._finite)] = value
                self._finite.append(True)

    def _new_leaf(self, name: str) -> int:
        self._leaf_names.append(name)
        return -len(self._leaf_names)


def _storage(tensor: torch.Tensor) -> int | None:
    """The identity of a tensor's memory, None for a tensor without storage (sparse layouts)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None
