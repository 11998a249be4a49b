"""The op-level tracer: one dispatch mode over forward, backward and optimizer.

Invariants: it keeps names, indices and 0-dim statistics, never the user's tensors, so its memory
grows with the number of ops and not with the activations; and it draws no random numbers and writes
to no tensor of the run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from nanodoc.facts.ops import RECEIVED
from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import (
    DisableTorchFunction,
    TorchDispatchMode,
    current_autograd_node,
)
from nanodoc.tensors.plain import local_of, local_parts
from nanodoc.trace.collectives import SENT_MARK, sick_when_sent
from nanodoc.trace.examine import OpDetail, Request, examine_call
from nanodoc.trace.flow import MOST_VALUES, FlowLog
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.half import HalfLog
from nanodoc.trace.modules import ModuleStack
from nanodoc.trace.ops import OpInfo, call_op, describe_op, outputs_of, tensors_in, written_by
from nanodoc.trace.optimizer_steps import OptimizerSteps
from nanodoc.trace.pending import are_finite, statistic
from nanodoc.trace.record import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE, RUNNING, Record, Ref
from nanodoc.trace.spans import calling_places
from nanodoc.trace.threads import NodeKeys, backward_everywhere

_ident = threading.get_ident
_LIFT = torch.ops.aten.lift_fresh.default  # how a tensor made of Python or NumPy values enters


class Tracer(TorchDispatchMode):
    """Traces everything run inside `with tracer:`; `finish()` then gives the `StepTrace`.

    `requests` maps the index of an op (from an earlier trace of the same step) to what is to be
    examined there. `leaves` are (name, tensor) pairs: parameters, buffers, the batch.
    `watch_optimizer` also takes statistics inside `Optimizer.step`, where a healthy step has
    hundreds of small ops that need none. With a `flow` the tracer follows gradients and not values:
    it takes no statistics. A `half` is told of every op, for what half precision did to it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        leaves: Iterable[tuple[str, torch.Tensor]],
        requests: dict[int, Request] | None = None,
        *,
        watch_optimizer: bool = False,
        flow: FlowLog | None = None,
        half: HalfLog | None = None,
    ) -> None:
        super().__init__()
        self._flow = flow
        self._half = half
        self._records: list[Record] = []
        self._finite: list[bool] = []  # per statistic
        self._pending: dict[int, torch.Tensor] = {}  # statistics that are still on a device
        self._writers: dict[int, list[int]] = {}
        self._leaf_names: list[str] = []
        self._marks: dict[str, Ref] = {}
        self._requests = requests if requests is not None else {}
        self._details: dict[int, OpDetail] = {}
        self._watch_optimizer = watch_optimizer
        self._steps = OptimizerSteps(self._records, places=flow is not None)
        self._in_optimizer = self._steps.inside
        self._paused: set[int] = set()
        self._keys = NodeKeys()
        self._modules = ModuleStack(model, self._records if flow is not None else None)
        for name, tensor in leaves:
            storage = _storage(tensor)
            # a tied weight keeps its first name
            if storage is not None and storage not in self._writers:
                self._writers[storage] = [self._new_leaf(name)]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this torch wraps `__torch_dispatch__` in `torch._dynamo.disable`, which costs two
        calls per op and an import of dynamo. Traced steps run eagerly (`set_stance`), so there is
        nothing to disable."""
        return False

    # -- entering and leaving ----------------------------------------------------------------------

    def __enter__(self) -> Tracer:
        self._keys.begin()
        self._everywhere = backward_everywhere(self)
        self._everywhere.__enter__()
        try:
            self._modules.__enter__()
            self._steps.__enter__()
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
        self._everywhere.__exit__(None, None, None)
        self._modules.__exit__()
        self._steps.__exit__()

    # -- what the engine tells ---------------------------------------------------------------------

    def mark(self, name: str, tensor: torch.Tensor) -> None:
        """Remembers who wrote `tensor` up to now, so that a slice can start from it; of a sharded
        one, this rank's part."""
        tensor = local_of(tensor)
        storage = _storage(tensor)
        writers = self._writers.get(storage, []) if storage is not None else []
        self._marks[name] = (writers, len(writers))
        if self._flow is not None:
            self._flow.mark(name, tensor, storage)

    def writers_of(self, tensor: torch.Tensor) -> tuple[tuple[int, ...], str | None]:
        """The ops that wrote to a tensor's memory up to now, and the leaf's name if it is one."""
        storage = _storage(tensor)
        log = self._writers.get(storage, []) if storage is not None else []
        leaf = next((self._leaf_names[-index - 1] for index in log if index < 0), None)
        return tuple(index for index in log if index >= 0), leaf

    def mark_sent(self) -> bool:
        """Marks what was not finite when it was sent to other ranks; False where nothing was."""
        sick = sick_when_sent(self._records, self._details)
        self._marks |= {f"{SENT_MARK}{number}": ref for number, ref in enumerate(sick)}
        return bool(sick)

    @property
    def count(self) -> int:
        """How many ops were recorded up to now."""
        return len(self._records)

    def add_host(self, name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
        """Records a step through Python that the dispatcher doesn't see (`tolist`,
        `torch.as_tensor` of tensors) as an op."""
        assert self._flow is not None
        index, ident = self._begin(), _ident()
        home = ident == self._keys.home
        storages = [_storage(tensor) for tensor in inputs]
        refs = tuple(
            (log := self._writers.get(storage, []) if storage is not None else [], len(log))
            for storage in storages
        )
        self._flow.note(index, inputs, storages)
        own, caller = calling_places(2)
        info = OpInfo(name, writes=False, written=(), view=False, silent=True)
        node = None if current_autograd_node() is None else "host"
        phase = FORWARD if node is None else BACKWARD
        key, module = self._keys.of_op(index, home=home), self._modules.current_of(ident)
        thread = 0 if home else self._keys.thread(ident)
        self._records[index] = Record(
            info, refs, phase, node, key, module, own, caller, 0, 0, bool(outputs), thread
        )
        for tensor in outputs:
            storage = _storage(tensor)
            if storage is not None:
                self._writers[storage] = [index]
            self._flow.made(index, tensor, storage)
        return index

    @property
    def module(self) -> tuple[str, str] | None:
        """Path and type of the module that is being called."""
        current = self._modules.current
        return self._modules.modules[current] if current >= 0 else None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Ops inside are run but not recorded: our own looks at the step."""
        ident = _ident()
        self._paused.add(ident)
        try:
            yield
        finally:
            self._paused.discard(ident)

    def finish(self) -> StepTrace:
        """Reads every statistic with one copy per device and dtype, and returns the trace."""
        for position, flag in are_finite(self._pending):
            self._finite[position] = flag
        self._pending = {}
        finite = self._finite
        bad = [not all(finite[r.statistic : r.statistic + r.statistics]) for r in self._records]
        modules, calls = self._modules, self._steps.calls
        trace = StepTrace(
            self._records, bad, self._marks, self._leaf_names, modules.modules, self._details, calls
        )
        trace.scripted, trace.module_calls = modules.scripted, modules.calls
        return trace

    # -- the hot path ------------------------------------------------------------------------------

    @ours
    def __torch_dispatch__(  # noqa: C901, PLR0915 - the hot path: a call an op costs
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        ident = _ident()
        if self._paused and ident in self._paused:
            return call_op(func, args, kwargs or {})
        info = describe_op(func)
        if info.receives:
            self._expect(local_parts(tensors_in(args)))
        lifted = func is _LIFT
        keys = self._keys
        home = ident == keys.home
        if keys.unmarked:
            keys.settle()
        records, flow, index = self._records, self._flow, self._begin()
        inputs = tensors_in(args[info.given :] if info.given else args)
        if kwargs:
            read = kwargs.values()
            if info.outs:
                read = [value for name, value in kwargs.items() if name not in info.outs]
            inputs += tensors_in(read)
        inputs = local_parts(inputs)
        writers = self._writers
        refs: list[Ref] = []
        seen = []
        for tensor in inputs:
            storage = _storage(tensor)
            seen.append(storage)
            if storage is None:
                refs.append(([], 0))
                continue
            # lifted: new, whatever had its address before
            known = None if lifted else writers.get(storage)
            # made where no op could be seen: from_numpy, a tensor of an enclosing scope
            if known is None:
                known = writers[storage] = [self._new_leaf("constant")]
            refs.append((known, len(known)))

        stepping = bool(self._in_optimizer) and ident in self._in_optimizer
        quiet = stepping and not self._watch_optimizer  # a healthy step has hundreds of these
        place, caller = (None, None) if quiet else calling_places(2)
        node = None if quiet else current_autograd_node()
        thread = 0 if home else keys.thread(ident)
        if node is None:
            phase, node_name, sequence = (
                OPTIMIZER if stepping else FORWARD,
                None,
                keys.of_op(index, home=home),
            )
        elif place is not None and torch.is_grad_enabled():
            # the user's forward code, run again inside backward by activation checkpointing
            phase, node_name, sequence = RECOMPUTE, None, keys.of_op(index, home=home)
        else:
            phase, node_name, sequence = BACKWARD, node.name(), keys.of_node(node)
        module = self._modules.current_of(ident)
        if flow is not None:
            if lifted:
                flow.forget(inputs[0])
            if node is None:
                flow.note(
                    index, inputs, seen, self._through_python(flow, index, info, args, inputs)
                )

        request, half = self._requests.get(index), self._half
        kept = half.before(info, inputs) if half is not None else inputs
        try:
            if request is None:
                out = call_op(func, args, kwargs or {})
            else:
                out, self._details[index] = examine_call(func, args, kwargs or {}, inputs, request)
                if request.on_reached is not None:
                    request.on_reached()
        except BaseException:
            records[index] = Record(
                info,
                tuple(refs),
                phase,
                node_name,
                sequence,
                module,
                place,
                caller,
                0,
                0,
                False,
                thread,
            )
            raise

        if half is not None:
            half.after(index, info, func, args, kwargs or {}, kept, out)
        statistics: list[bool | torch.Tensor] = []
        overwrites = False
        outputs = local_parts(outputs_of(out))
        if info.writes:
            written = local_parts(written_by(info, args, kwargs))
            overwrites = self._note_writes(written, index)
            outputs = outputs or written  # foreach and GradScaler ops return nothing
        for tensor in () if quiet and info.writes else outputs:
            storage = _storage(tensor)
            if not info.writes and storage is not None and storage not in seen:
                writers[storage] = [index]
                overwrites = True
            if flow is not None:
                if phase == FORWARD:
                    flow.made(index, tensor, storage)
            elif not (quiet or info.silent or info.view):
                statistics += statistic(tensor)
        if thread:
            keys.made(index, outputs)
        first = self._keep(statistics) if statistics else 0
        records[index] = Record(
            info,
            tuple(refs),
            phase,
            node_name,
            sequence,
            module,
            place,
            caller,
            first,
            len(statistics),
            overwrites,
            thread,
        )
        return out

    def _begin(self) -> int:
        """The index of the op that begins, kept free for its record: ops of other threads may begin
        and end in between."""
        with self._keys.lock:
            self._records.append(RUNNING)
            if self._flow is not None:
                self._flow.begin()
            return len(self._records) - 1

    def _keep(self, statistics: list[bool | torch.Tensor]) -> int:
        """Keeps an op's statistics beside each other and returns the index of the first."""
        finite = self._finite
        with self._keys.lock:
            first = len(finite)
            for value in statistics:
                if value is True or value is False:
                    finite.append(value)
                else:
                    self._pending[len(finite)] = value
                    finite.append(True)
            return first

    def _through_python(
        self, flow: FlowLog, index: int, info: OpInfo, args: Any, inputs: list[torch.Tensor]
    ) -> list[int]:
        """The exports an op reads without a tensor to show for it: a new tensor of Python values, a
        number argument."""
        if not flow.exports:
            return []
        if info.name == "aten.lift_fresh.default":
            if not inputs[0].is_floating_point() or not inputs[0].is_cpu:
                return []
            with self.paused(), DisableTorchFunction():
                values = inputs[0].detach().flatten()[:MOST_VALUES].tolist()
            return flow.through_python(index, values, inputs[0].untyped_storage().data_ptr())
        return flow.through_python(index, args)

    def _note_writes(self, written: list[torch.Tensor], index: int) -> bool:
        """Appends this op to the writers of each tensor it mutated; True if all of them were
        covered whole."""
        whole = True
        for tensor in written:
            storage = _storage(tensor)
            if storage is not None:
                self._writers.setdefault(storage, []).append(index)
                whole &= tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
        return whole

    def _expect(self, buffers: list[torch.Tensor]) -> None:
        """Another rank's values will be in these, where the op's schema says nothing of a write."""
        for tensor in buffers:
            if (storage := _storage(tensor)) is not None:
                self._writers[storage] = [self._new_leaf(RECEIVED)]

    def _new_leaf(self, name: str) -> int:
        with self._keys.lock:
            self._leaf_names.append(name)
            return -len(self._leaf_names)


# bound before a script can replace it: a thread of the script's runs with its replacements
_untyped_storage = torch.Tensor.untyped_storage


def _storage(tensor: torch.Tensor) -> int | None:
    """The identity of a tensor's memory, None for a tensor without storage (sparse layouts)."""
    try:
        return int(_untyped_storage(tensor)._cdata)
    except (NotImplementedError, RuntimeError):
        return None
