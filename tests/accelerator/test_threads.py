"""Autograd runs a device's backward in a thread of its own. Whatever runs where, the trace is that
of one thread."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nanodoc.trace.graph import StepTrace
from nanodoc.trace.tracer import Tracer
from tests.accelerator.device import FIRST, SECOND


def traced(model: nn.Module, step: Callable[[], Any], *, threads: bool) -> StepTrace:
    model.zero_grad()
    with torch.autograd.set_multithreading_enabled(threads):
        tracer = Tracer(
            model, [(f"param:{name}", p.detach()) for name, p in model.named_parameters()]
        )
        with tracer:
            step()
    return tracer.finish()


def told(trace: StepTrace) -> Counter[tuple[Any, ...]]:
    """What the trace says of every op, whatever order and threads they ran in: itself, where it was
    called, and the forward op whose derivative it computes, as the number of such ops before it."""
    seen: Counter[str] = Counter()
    numbers = []
    for record in trace.records:
        key = f"{record.info.name} {record.phase} {record.module}"
        numbers.append((key, seen[key]))
        seen[key] += 1
    found: Counter[tuple[Any, ...]] = Counter()
    for index, record in enumerate(trace.records):
        forward = trace.forward_of(index) if record.phase == "backward" else None
        facts = trace.facts(index)
        line = facts.location.line if facts.location is not None else None
        group = len(trace.node_group(index)) if record.node is not None else 0
        found[
            facts.op,
            facts.phase,
            facts.node,
            facts.module,
            line,
            numbers[forward] if forward is not None else None,
            group,
        ] += 1
    return found


def same_in_one_thread(model: nn.Module, step: Callable[[], Any]) -> StepTrace:
    """Traces the step with autograd's threads and without, and compares; returns the trace with
    threads."""
    several, one = traced(model, step, threads=True), traced(model, step, threads=False)
    assert len({record.thread for record in several.records}) > 1
    assert {record.thread for record in one.records} == {0}
    assert told(several) == told(one)
    return several


class Inner(nn.Module):
    """Many ops of the same names, so that a wrong number finds a wrong op."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * 2.0
        z = torch.sigmoid(y) * 3.0
        return torch.sigmoid(z) * torch.sigmoid(y)


class Block(nn.Module):
    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.inner, self.how = Inner(), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "reentrant":
            return checkpoint(self.inner, x, use_reentrant=True)  # type: ignore[no-any-return]
        if self.how == "checkpoint":
            return checkpoint(self.inner, x, use_reentrant=False)  # type: ignore[no-any-return]
        return self.inner(x)  # type: ignore[no-any-return]


def blocks(how: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(how), Block(), Block(how))


@pytest.mark.parametrize("how", ["", "checkpoint", "reentrant"])
def test_backward_in_a_devices_thread(how: str) -> None:
    model = blocks(how).to(FIRST)
    x = torch.randn(2, 4, device=FIRST)
    trace = same_in_one_thread(model, lambda: model(x).square().mean().backward())
    found = {
        trace.forward_of(index)
        for index, record in enumerate(trace.records)
        if record.node == "SigmoidBackward0"
    }
    assert None not in found
    sigmoids = {
        index
        for index, record in enumerate(trace.records)
        if record.info.name == "aten.sigmoid.default"
    }
    # a reentrant checkpoint differentiates what it computed again, the other what it computed
    # first; each sigmoid has its own
    outside = {
        index
        for index in sigmoids
        if trace.records[index].phase == "forward" and _differentiable(trace, index, how)
    }
    again = {index for index in sigmoids if trace.records[index].phase == "recompute"}
    assert found == (outside | again if how == "reentrant" else outside)


def _differentiable(trace: StepTrace, index: int, how: str) -> bool:
    """Not inside a reentrant checkpoint, whose forward runs without gradients."""
    module = trace.modules[trace.records[index].module][0]
    return how != "reentrant" or module in ("0.inner", "2.inner")


def test_second_derivatives_made_in_a_devices_thread() -> None:
    """Of a gradient penalty: the second backward runs nodes that the first one made, in the
    device's thread."""
    model = blocks("").to(FIRST)
    x = torch.randn(2, 4, device=FIRST, requires_grad=True)

    def step() -> None:
        x.grad = None
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (gradient.square().sum(1) - 1).square().mean().backward()

    trace = same_in_one_thread(model, step)
    for index, record in enumerate(trace.records):
        forward = trace.forward_of(index) if record.phase == "backward" else None
        if forward is not None:  # never a forward op that happens to have the number
            name = trace.records[forward].info.name.split(".")[1].strip("_").replace("_", "")
            assert record.node is not None
            assert record.node.lower().startswith(name), (record.node, name)


class TwoDevices(nn.Module):
    """Two branches that meet at the end: their backward runs at the same time."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left = nn.Sequential(*(Block(how) for _ in range(6))).to(FIRST)
        self.right = nn.Sequential(*(Block(how) for _ in range(6))).to(SECOND)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.left(left).mean() + self.right(right).mean().to(FIRST)  # type: ignore[no-any-return]


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 4, device=FIRST, requires_grad=True), torch.randn(
        2, 4, device=SECOND, requires_grad=True
    )


@pytest.mark.parametrize("how", ["", "checkpoint", "reentrant"])
def test_two_devices_backward_at_once(how: str) -> None:
    model = TwoDevices(how)

    def step() -> None:
        for one in given:
            one.grad = None
        model(*given).backward()

    for _ in range(5):  # threads take turns differently each time
        given = inputs()
        trace = same_in_one_thread(model, step)
    assert len({record.thread for record in trace.records}) == 3
    again = [
        (trace.modules[record.module][0].split(".")[0], record.thread)
        for record in trace.records
        if record.phase == "recompute"
    ]
    # no module of the other branch, though both compute again at once
    assert len(set(again)) == (2 if how else 0)


def test_a_backward_that_a_thread_of_the_users_starts() -> None:
    model = blocks("checkpoint").to(FIRST)
    x = torch.randn(2, 4, device=FIRST)

    def elsewhere() -> None:
        loss = model(x).square().mean()
        gradient = torch.ones_like(loss)
        raised: list[BaseException] = []

        def run() -> None:
            try:
                loss.backward(gradient)
            except BaseException as error:
                raised.append(error)

        if not in_thread:
            return run()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert not raised, raised
        return None

    in_thread = True
    with_thread = traced(model, elsewhere, threads=True)
    in_thread = False
    plain = traced(model, elsewhere, threads=False)
    assert told(with_thread) == told(plain)


def test_a_forward_in_a_thread_of_the_users_and_one_in_the_main_thread() -> None:
    """Both count their nodes from their own start: the numbers meet."""
    model = blocks("").to(FIRST)
    x = torch.randn(2, 4, device=FIRST)
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack

    def step(parallel: bool) -> None:
        losses: list[torch.Tensor] = []

        def forward(number: int, tracers: list[Any]) -> None:
            with contextlib.ExitStack() as stack:
                # a mode is a thread's own; DataParallel and its kin take it along
                for tracer in tracers:
                    stack.enter_context(in_this_thread(tracer))
                losses.append(model[number](x).square().mean())

        if parallel:
            thread = threading.Thread(target=forward, args=(1, modes()))
            thread.start()
            thread.join()
        else:
            forward(1, [])
        forward(2, [])
        sum(losses).backward()  # type: ignore[union-attr]

    several = traced(model, lambda: step(True), threads=True)
    one = traced(model, lambda: step(False), threads=False)
    assert told(several) == told(one)


@contextlib.contextmanager
def in_this_thread(mode: Any) -> Iterator[None]:
    torch.utils._python_dispatch._push_mode(mode)
    try:
        yield
    finally:
        torch.utils._python_dispatch._pop_mode()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.sigmoid(x) * x  # first of the forward

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.exp(x)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(self.linear(x)) * 2.0  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, Doubled.apply(x), use_reentrant=True)  # type: ignore[no-any-return]


class Counting(torch.autograd.Function):
    """Its backward makes nodes in the device's thread until that has counted as far as asked, and
    says how far it is."""

    target = reached = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            y = torch.ones(1, device=FIRST, requires_grad=True)
            while sequence_number() < Counting.target:
                y = y * 1
        Counting.reached = sequence_number()
        return grad * 1


def sequence_number() -> int:
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def let_the_counts_meet() -> None:
    """The main thread and the first device's thread have counted equally far, so that their next
    nodes have the same numbers."""
    x = torch.ones(1, device=FIRST, requires_grad=True)
    Counting.target = 0
    Counting.apply(x).backward()  # type: ignore[no-untyped-call]
    while sequence_number() < Counting.reached:
        x * 1
    Counting.target = sequence_number() + 1  # one more: that of the call itself
    Counting.apply(x).backward()  # type: ignore[no-untyped-call]


def test_custom_functions_inside_a_reentrant_checkpoint() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Custom(), Custom()).to(FIRST)
    x = torch.randn(2, 4, device=FIRST)
    for _ in range(8):
        let_the_counts_meet()
        trace = same_in_one_thread(model, lambda: model(x).sum().backward())
        nodes = [
            index
            for index, record in enumerate(trace.records)
            if record.node == "DoubledBackward" and record.phase == "backward"
        ]
        found = [trace.forward_of(index) for index in nodes]
        # made inside a backward, where no op shows that a node was made: rather none than that of
        # another's number
        assert found.count(None) == 4
        assert {trace.records[forward].info.name for forward in found if forward is not None} == {
            "aten.sigmoid.default"
        }


IN_STEP, OTHER_RAN = threading.Event(), threading.Event()


class Slow(torch.optim.SGD):
    """Steps while the other device's backward goes on."""

    def step(self, closure: Any = None) -> Any:
        IN_STEP.set()
        assert OTHER_RAN.wait(20)
        return super().step(closure)


class Waiting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        assert IN_STEP.wait(20)
        out = torch.exp(grad)  # beside the step
        OTHER_RAN.set()
        return out


def test_an_optimizer_that_steps_in_backward() -> None:
    """Fused backward and optimizer: the hook runs in one device's thread while the other device's
    backward goes on."""
    IN_STEP.clear(), OTHER_RAN.clear()
    left, right = nn.Linear(4, 4).to(FIRST), nn.Linear(4, 4).to(SECOND)
    optimizer = Slow([left.weight], lr=0.1, foreach=False)
    handle = left.weight.register_post_accumulate_grad_hook(lambda parameter: optimizer.step())
    model = nn.ModuleList([left, right])

    def step() -> None:
        waiting = Waiting.apply(right(torch.ones(2, 4, device=SECOND)))  # type: ignore[no-untyped-call]
        (left(torch.ones(2, 4, device=FIRST)).mean() + waiting.mean().to(FIRST)).backward()

    trace = traced(model, step, threads=True)
    handle.remove()
    assert OTHER_RAN.is_set()
    (exp,) = [record for record in trace.records if record.info.name == "aten.exp.default"]
    assert (exp.phase, exp.node) == ("backward", "WaitingBackward")
    assert any(record.phase == "optimizer" for record in trace.records)
