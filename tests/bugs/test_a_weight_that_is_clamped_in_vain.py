"""`p.data.clamp(-c, c)` in a loop behind the optimizer's step: a step that is run again has ended
there, so the line is found in the source."""

from __future__ import annotations

from pathlib import Path

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
def test_loops_over_parameters(source: str, tmp_path: Path) -> None:
    file = tmp_path / "clip.py"
    file.write_text(source + "\n")
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
    found = lost_updates(StepCalls(calls=(call,)))
    assert [place.line for place in found if Path(place.file).name == file.name] == LOOPS[source]
