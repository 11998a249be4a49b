"""Patches change what they name, and nothing else, and are gone afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nanodoc import Recipe
from nanodoc.experiments import call_site, precision
from nanodoc.experiments.call_site import Applied
from nanodoc.facts.source import SourceSpan
from nanodoc.trace.spans import calling_places, resolve
from nanodoc.trace.tracer import Tracer


def span_of(run: Any, op: str, which: int = 0) -> SourceSpan:
    """The source span of the `which`-th call of `op` while `run` runs."""
    tracer = Tracer(nn.Linear(1, 1), [])
    with tracer:
        run()
    trace = tracer.finish()
    found = [
        trace.facts(i).location for i, r in enumerate(trace.records) if f".{op}." in r.info.name
    ]
    assert found[which] is not None
    return found[which]  # type: ignore[return-value]


@settings(max_examples=40, deadline=None)
@given(target=st.integers(0, 3), value=st.sampled_from([1e-8, 1e-6, 0.5]))
def test_a_constant_is_changed_at_its_own_call_only(target: int, value: float) -> None:
    x = torch.zeros(3)

    def program() -> list[float]:
        a = x + value
        b = x + value
        c = torch.clamp(x, min=value)
        d = F.normalize(x + 1, eps=value, dim=0) * 0 + torch.add(x, value)
        return [float(t[0]) for t in (a, b, c, d)]

    before = program()
    tracer = Tracer(nn.Linear(1, 1), [])
    with tracer:
        program()
    trace = tracer.finish()
    firsts = {
        0: ("aten.add.Tensor", 0),
        1: ("aten.add.Tensor", 1),
        2: ("aten.clamp.default", 0),
        3: ("aten.add.Tensor", 3),
    }
    name, number = firsts[target]
    index = [i for i, r in enumerate(trace.records) if r.info.name == name][number]
    where = trace.facts(index).location
    assert where is not None
    applied = Applied()
    with call_site.constant_at(where, value, 7.0, applied):
        patched = program()
    assert applied.yes
    assert [i for i in range(4) if patched[i] != before[i]] == [target]
    assert program() == before


def test_a_module_in_float32() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    seen: list[torch.dtype] = []
    for layer in model:
        layer.register_forward_hook(lambda m, a, out: seen.append(out.dtype))
    applied = Applied()
    with (
        precision.float32_module(model[1], "cpu", applied),
        torch.autocast("cpu", dtype=torch.float16),
    ):
        model(torch.ones(1, 4))
    assert applied.yes
    assert seen == [torch.float16, torch.float32, torch.float16]
    assert not model[1]._forward_pre_hooks
    assert len(model[1]._forward_hooks) == 1


def test_a_module_that_raises_leaves_autocast_as_it_was() -> None:
    model = nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.float16):
        with pytest.raises(RuntimeError), precision.float32_module(model, "cpu", Applied()):
            model(torch.ones(1, 5))
        assert torch.is_autocast_enabled("cpu")


def test_one_call_in_float32() -> None:
    def program() -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.full((2,), 300.0).half()
        return a * a, a * a

    where = span_of(program, "mul", 1)
    with call_site.float32_call(where, "cpu", Applied()):
        first, second = program()
    assert bool(torch.isinf(first).all())
    assert second.dtype == torch.float32
    assert second[0] == 90_000.0


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_autocast_in_another_dtype(dtype: torch.dtype | None) -> None:
    model = nn.Linear(2, 2)
    with precision.autocast_in(dtype, Applied()), torch.autocast("cpu", dtype=torch.float16):
        out = model(torch.ones(1, 2))
    assert out.dtype == (dtype or torch.float32)
    with torch.autocast("cpu", dtype=torch.float16):
        assert model(torch.ones(1, 2)).dtype == torch.float16


def test_places_are_those_of_the_user() -> None:
    place = calling_places(1)[0]
    assert place is not None
    span = resolve(*place)
    assert span is not None
    assert span.function.endswith("test_places_are_those_of_the_user")
    assert Recipe is not None


@settings(max_examples=15, deadline=None)
@given(constants=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=5), data=st.data())
def test_an_argument_is_changed_at_its_own_line_only(
    constants: list[float], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Programs of several equal calls: the patch of one leaves the others alone, and is gone
    afterwards."""
    target = data.draw(st.integers(0, len(constants) - 1))
    path = tmp_path_factory.mktemp("program") / "program.py"
    calls = "\n".join(f"    out.append(torch.log(x + {c!r}))" for c in constants)
    path.write_text(
        f"import torch\n\ndef program(x):\n    out = []\n{calls}\n    return [float(one) for one "
        "in out]\n"
    )
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    x = torch.zeros(())
    before = space["program"](x)
    where = span_of(lambda: space["program"](x), "log", target)
    applied = Applied()
    with call_site.argument_at(where, "log", 0, "{x} + 3.0", applied):
        patched = space["program"](x)
    assert applied.yes
    assert [i for i in range(len(constants)) if patched[i] != before[i]] == [target]
    assert space["program"](x) == before
