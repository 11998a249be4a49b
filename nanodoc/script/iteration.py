"""What an iteration of a script's loop begins with: its variables, its batch, what it changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType
from typing import Any
from weakref import ref

import torch

from nanodoc import accelerator
from nanodoc.instrument.torch_private import is_any_autocast_enabled
from nanodoc.replay.objects import HOLDS_NOTHING, SUSPENDED, PlainState
from nanodoc.script.loops import Loop
from nanodoc.script.outside import Drawings, Outside, drawings_of
from nanodoc.tensors.nested import map_tensors, tensors_of
from nanodoc.trace.frame_variables import variables_of_frame

NUMBERS = (int, float)
_TRAINED = (torch.nn.Module, torch.optim.Optimizer)
_LEARNT_FROM = 3  # iterations
AutocastFlags = tuple[tuple[str, bool, torch.dtype], ...]
"""(type of device, whether autocast is on, its dtype)"""


class Changing:
    """Learns which objects an iteration changes: the others need not be copied at every step."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._iterations = 0
        self.writes = False
        """The body writes into its batch."""

    @property
    def known(self) -> list[Any] | None:
        """The objects that change; None until a few iterations have told."""
        return list(self._seen.values()) if self._iterations >= _LEARNT_FROM else None

    def learn(self, start: IterationStart | None) -> None:
        """An iteration is over."""
        if start is not None:
            self._iterations += 1
            self._seen.update({id(value): value for value in start.undo.changed()})
            self.writes = self.writes or start.was_written


class ScriptBatch(dict[str, Any]):
    """The values of the loop's variables that hold tensors, by name."""


@dataclass(slots=True)
class IterationStart:
    """What one iteration of a loop begins with."""

    loop: Loop
    code: CodeType
    namespace: dict[str, Any]
    variables: dict[str, Any]
    undo: PlainState
    flags: AutocastFlags
    batch: Any = None
    """The batch it was given: the value of the loop's variable, or the values of several by name.
    Empty where the body makes its batch itself. A copy, where the body writes into it."""
    batch_is_copy: bool = False
    versions: tuple[int, ...] = ()  # how often the batch's tensors had been written to
    trained: dict[str, ref[Any]] = field(default_factory=dict)
    """The networks and optimizers among the global variables: a script may load its best model into
    the variable when the loop is over. Not held: a script may let go of one."""
    recorded: Drawings = field(default_factory=Drawings)
    numbers: dict[str, Any] = field(default_factory=dict)
    """Those that the loop binds or counts by: other steps have others."""
    suspended: dict[str, ref[Any]] = field(default_factory=dict)
    """Generators and coroutines among the variables, which are not held."""
    own_batch: Any = None  # the script's own objects

    @property
    def was_written(self) -> bool:
        """The body has written into its batch."""
        return _versions(self.own_batch) != self.versions


def batch_of(names: Sequence[str], variables: Mapping[str, Any]) -> Any:
    """The values of these variables; of several by name."""
    if len(names) == 1:
        return variables[names[0]]
    return ScriptBatch({name: variables[name] for name in names})


def _versions(batch: Any) -> tuple[int, ...]:
    return tuple(0 if t.is_inference() else t._version for t in tensors_of(batch))


def copied(batch: Any) -> Any:
    return map_tensors(batch, lambda tensor: tensor.detach().clone())


def start_of(
    frame: FrameType,
    loop: Loop,
    outside: Outside,
    changing: Changing | None = None,
    bound: Mapping[str, Any] | None = None,
) -> IterationStart:
    """The start of the iteration that `frame` is about to run; `changing` knows what the iterations
    before it changed, and `bound` are variables that the loop is about to bind."""
    code, namespace = frame.f_code, frame.f_globals
    if code.co_name == "<module>":
        variables = {n: namespace[n] for n in loop.names if n in namespace}
        beside: Mapping[str, Any] = {}
    else:
        variables = variables_of_frame(frame)
        beside = {n: namespace[n] for n in loop.names if n in namespace and n not in variables}
    variables.update(bound or {})
    suspended = {n: ref(v) for n, v in variables.items() if isinstance(v, SUSPENDED)}
    for name in suspended:
        del variables[name]
    for name in loop.rebound:
        # a loss of the last iteration would keep its graph alive
        if name in variables and any(t.requires_grad for t in tensors_of(variables[name])):
            del variables[name]
    values = [*variables.values(), *beside.values()]
    looked_into = [value for value in values if type(value) not in HOLDS_NOTHING]
    for value in looked_into:
        outside.simulator(value)
    # functions that the body calls may reach others
    outside.simulators_of(namespace, (loop.file, loop.number))
    undo = PlainState(looked_into, changing.known if changing is not None else None)
    batch = batch_of(batch_names(loop, variables), variables)
    versions, is_copy = _versions(batch), changing is None or changing.writes
    return IterationStart(
        loop,
        code,
        namespace,
        variables,
        undo,
        autocast_flags(),
        copied(batch) if is_copy else batch,
        is_copy,
        versions,
        {n: ref(v) for n, v in list(namespace.items()) if issubclass(type(v), _TRAINED)},
        drawings_of(code),
        numbers_among(loop.counted_by, variables, beside),
        suspended,
        batch,
    )


def numbers_among(
    names: Iterable[str], variables: Mapping[str, Any], beside: Mapping[str, Any]
) -> dict[str, Any]:
    """The numbers of these names: a function's variables, or else global ones (`beside`)."""
    found = {name: variables.get(name, beside.get(name)) for name in names}
    return {name: value for name, value in found.items() if type(value) in NUMBERS}


def batch_names(loop: Loop, variables: Mapping[str, Any]) -> list[str]:
    """The names that hold the batch: those that the loop binds; for a loop that binds none (`while
    True`), those that the body reads first and binds anew."""
    found = [n for n in loop.targets if _holds_data(variables.get(n))]
    return found or [n for n in sorted(loop.carried) if _holds_data(variables.get(n))]


def _holds_data(value: Any) -> bool:
    if isinstance(value, torch.nn.Module):
        return False
    tensors = tensors_of(value)
    return bool(tensors) and not any(tensor.requires_grad for tensor in tensors)


def autocast_flags() -> AutocastFlags:
    if not is_any_autocast_enabled():
        return _without_autocast()
    return tuple(
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in accelerator.kinds()
    )


@cache
def _without_autocast() -> AutocastFlags:
    """Asked for once: which devices there are takes its time."""
    return tuple((kind, False, torch.get_autocast_dtype(kind)) for kind in accelerator.kinds())
