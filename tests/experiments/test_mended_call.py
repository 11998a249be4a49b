"""An exception whose mistake lies in an earlier call: the call is found by changing calls until the
step runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import nanodoc

HEAD = """import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
left, right, head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(16, 3)
conv, narrow = nn.Conv1d(4, 8, 3), nn.Linear(8, 3)
weights = [p for net in (left, right, head, conv, narrow) for p in net.parameters()]
optimizer = torch.optim.Adam(weights)
for step in range(3):
    x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
"""
TAIL = """    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def report_of_script(folder: Path, text: str) -> dict[str, Any]:
    (folder / "train.py").write_text(text)
    nanodoc("run", "--output", "json=report.json", "train.py", cwd=folder)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


@pytest.mark.parametrize(
    ("lines", "guilty", "said"),
    [
        (
            """    joined = torch.cat([left(x), right(x)])
    hidden = F.relu(joined)
    loss = F.cross_entropy(head(hidden), y)
""",
            "torch.cat([left(x), right(x)])",
            "With dim=1",
        ),
        (
            """    features = conv(torch.randn(12, 4, 9))
    pooled = features.mean(0)
    loss = F.cross_entropy(narrow(pooled), y)
""",
            "features.mean(0)",
            "With dim=2",
        ),
        (
            """    small = x.half()
    scaled = small * 2
    loss = F.cross_entropy(head(torch.cat([left(scaled), right(scaled)], 1)), y)
""",
            "x.half()",
            "Without half()",
        ),
        (
            """    scores = left(x)[:, :3]
    loss = F.cross_entropy(y, scores)
""",
            "F.cross_entropy(y, scores)",
            "first two arguments exchanged",
        ),
        (
            """    norm = x.norm(dim=1)
    unit = x / norm
    loss = F.cross_entropy(left(unit)[:, :3], y)
""",
            "x.norm(dim=1)",
            "With keepdim=True",
        ),
    ],
)
def test_the_earlier_call_is_named(tmp_path: Path, lines: str, guilty: str, said: str) -> None:
    text = HEAD + lines + TAIL
    report = report_of_script(tmp_path, text)
    finding = report["findings"][0]
    line = next(i for i, code in enumerate(text.splitlines(), 1) if guilty in code)
    assert finding["culprit"]["location"]["line"] == line
    assert said in finding["explanation"]
    assert finding["fixes"][0]["verified"]


def test_a_misfit_that_no_change_of_a_call_mends_is_told_where_it_raises(tmp_path: Path) -> None:
    lines = "    hidden = F.relu(left(x))\n    loss = F.cross_entropy(head(hidden), y)\n"
    report = report_of_script(tmp_path, HEAD + lines + TAIL)
    finding = report["findings"][0]
    assert finding["title"].startswith("mat1 and mat2 shapes")
    assert "head(hidden)" in finding["culprit"]["location"]["code"]


def test_a_later_batch_that_does_not_fit_blames_no_call(tmp_path: Path) -> None:
    lines = """    x = x[: 12 - step]
    rows = left(x).reshape(4, 3, 8).mean(1)
    loss = F.cross_entropy(narrow(rows), y[:4])
"""
    finding = report_of_script(tmp_path, HEAD + lines + TAIL)["findings"][0]
    assert "runs to its end" not in finding["explanation"]


def test_a_compiled_step_is_told_as_it_raises_uncompiled(tmp_path: Path) -> None:
    text = HEAD.replace(
        "for step",
        """

@torch.compile(backend="eager")
def forward(x, y):
    joined = torch.cat([left(x), right(x)])
    return F.cross_entropy(head(joined), y)


for step""",
    )
    text += "    loss = forward(x, y)\n" + TAIL
    finding = report_of_script(tmp_path, text)["findings"][0]
    assert "torch.cat" in finding["culprit"]["location"]["code"]
    assert "fake tensor" not in finding["title"]
