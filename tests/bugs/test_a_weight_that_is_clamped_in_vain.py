"""`p.data.clamp(-c, c)` in a loop behind the optimizer's step: a step that is run again has ended
there, so the line is found in the source."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nanodoc.examination.discarded import lost_updates
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.trace.files import line_span

LOOPS = {
    "for p in net.parameters():\n    p.data.clamp(-1, 1)": [2],
    "for name, p in net.named_parameters():\n    if p.dim() > 1:\n        p.mul(0.9)": [3],
    "for a, b in zip(net.parameters(), other.parameters()):\n    a.data.lerp(b.data, 0.1)": [2],
    "for p in net.parameters():\n    p.data.clamp_(-1, 1)": [],
    "for p in net.parameters():\n    q = p.data.clamp(-1, 1)\n    seen.append(q)": [],
    "for p in net.parameters():\n    seen.add(p)": [],
    "for p in net.parameters():\n    p.register_hook(print)": [],
    "for x in batches:\n    x.clamp(0, 1)": [],
}


@pytest.mark.parametrize("source", LOOPS)
@pytest.mark.parametrize("called", [True, False])
def test_loops_over_parameters(source: str, called: bool, tmp_path: Path) -> None:
    """Functions that the step does not call tell nothing."""
    file = tmp_path / "clips_of_a_user.py"
    lines = textwrap.indent(source, "    ")
    step = "clip(model, model, [], [])" if called else "pass"
    file.write_text(
        f"def clip(net, other, batches, seen):\n{lines}\n\ndef step(model):\n    {step}\n"
    )
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    call = CallFacts(
        index=0,
        name="linear",
        module=None,
        module_type=None,
        location=line_span(str(file), 1, "<module>"),
        called_from=None,
        arguments=(),
        shape=(1,),
        requires_grad=True,
        view=False,
    )
    recipe: Any = SimpleNamespace(loss_fn=module.step, train_step=None)
    found = lost_updates(recipe, StepCalls(calls=(call,)))
    told = [place.line - 1 for place in found if Path(place.file).name == file.name]
    assert told == (LOOPS[source] if called else [])
