"""One step run with its gradient flow followed: as a replay, or live, where the step itself is the
one that is watched."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from nanodoc.errors import UserCodeError
from nanodoc.examination.retained_tensors import KeptTensors
from nanodoc.examination.saved_tensors import SavedTensorWatch
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.taps import SHOW_WARNING, listening
from nanodoc.instrument.torch_private import DisableTorchDispatch, DisableTorchFunction
from nanodoc.recipe.recipe import Recipe
from nanodoc.tensors.nested import tensor_leaves
from nanodoc.tensors.plain import is_sharded, local_of, without_values
from nanodoc.tensors.sums import dense_values
from nanodoc.trace.custom import CustomNodes
from nanodoc.trace.eager import run_eagerly
from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.flow import FlowLog
from nanodoc.trace.functions import FunctionWatch
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.spans import Place, calling_places, resolve, resolved
from nanodoc.trace.threads import in_one_thread
from nanodoc.trace.tracer import Tracer


class FollowedStep:
    """What one followed run of a step showed. Run the step inside `watching()`, telling `on_loss`
    of every loss before its backward and calling `note_gradients` where gradients are complete;
    then the rest is there."""

    def __init__(
        self,
        recipe: Recipe,
        batches: Sequence[Any],
        *,
        saved: bool = False,
        shaken: Place | None = None,
        ranges: bool = False,
    ) -> None:
        self._model = model = recipe.model
        self.named = [(name, p) for name, p in model.named_parameters() if not without_values(p)]
        leaves = [
            *((f"param:{name}", parameter.detach()) for name, parameter in self.named),
            *(
                (f"buffer:{name}", buffer)
                for name, buffer in model.named_buffers()
                if not without_values(buffer)
            ),
            *(
                leaf
                for i, batch in enumerate(batches)
                for leaf in tensor_leaves(batch, f"batch[{i}]")
            ),
        ]
        sharded = any(is_sharded(parameter) for _, parameter in self.named)
        self.flow = FlowLog(self.named, model.named_parameters if sharded else None)
        self._tracer = Tracer(model, leaves, flow=self.flow)
        self.functions = FunctionWatch(self._tracer, self.flow, shaken, check_ranges=ranges)
        self.custom = CustomNodes()
        self.saved = SavedTensorWatch(self._tracer) if saved else None
        self.kept = KeptTensors(recipe)
        self.trainable = {name: parameter.requires_grad for name, parameter in self.named}
        self.losses: list[str] = []
        self.needs_grad = True
        self.rewrapped = False
        self.calls: list[SourceSpan | None] = []
        self.with_gradient: set[str] = set()
        self.norms: dict[str, float] = {}
        self.error: UserCodeError | None = None
        self.trace: StepTrace = self._tracer.finish()

    @contextlib.contextmanager
    def watching(
        self, patch: contextlib.AbstractContextManager[Any] | None = None, *, live: bool = False
    ) -> Iterator[None]:
        """Around the step. A replay keeps warnings quiet, which the run has shown, and runs
        compiled parts eagerly."""
        grad_before = torch.is_grad_enabled()
        try:
            with contextlib.ExitStack() as stack:
                if live:
                    stack.enter_context(_warnings_at_the_users_line())
                else:
                    stack.enter_context(run_eagerly())
                    stack.enter_context(in_one_thread(self._model))
                    stack.enter_context(warnings.catch_warnings())
                    warnings.simplefilter("ignore")
                stack.enter_context(self.kept)
                stack.callback(self.custom.remove)
                if self.saved is not None:
                    stack.enter_context(self.saved)
                if patch is not None:
                    stack.enter_context(patch)
                stack.enter_context(self.functions)
                stack.enter_context(self._tracer)
                yield
        finally:
            if not live:
                torch.set_grad_enabled(grad_before)
            self.trace = self._tracer.finish()

    def on_loss(self, loss: torch.Tensor) -> None:
        """A loss is about to be differentiated."""
        name = f"loss:{len(self.losses)}"
        with DisableTorchFunction():
            self._tracer.mark(name, loss)
            self.losses.append(name)
            self.needs_grad &= loss.requires_grad
            self.rewrapped |= loss.requires_grad and loss.is_leaf
            own, caller = calling_places(2)
            place = caller or own
            self.calls.append(resolved(place))
            self.custom.watch(loss)

    def note_gradients(self) -> None:
        """Which parameters have a gradient now; those noted before in the same step count too."""
        with torch.no_grad(), DisableTorchFunction(), DisableTorchDispatch():
            having = [(n, local_of(p.grad).detach()) for n, p in self.named if p.grad is not None]
            if not having:
                return
            grads = [dense_values(grad) for _, grad in having]
            norms = torch.stack(
                [torch.linalg.vector_norm(grad).float().to(grads[0].device) for grad in grads]
            ).tolist()
            for (name, _), norm in zip(having, norms, strict=True):
                self.with_gradient.add(name)
                self.norms[name] = max(norm, self.norms.get(name, 0.0)) if norm == norm else norm


@contextlib.contextmanager
def _warnings_at_the_users_line() -> Iterator[None]:
    """torch blames a warning on the Python frame that called it; for this step that is our function
    mode's."""

    def showing(original: Callable[..., Any]) -> Callable[..., Any]:
        def show(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
            if frame_kind(filename) != USER:
                own, caller = calling_places(2)
                place = caller or own
                if place is not None:
                    span = resolve(*place)
                    filename, lineno = (
                        place[0].co_filename,
                        span.line if span is not None else place[0].co_firstlineno,
                    )
            original(message, category, filename, lineno, *rest)

        return show

    with listening((SHOW_WARNING, showing)):
        yield
