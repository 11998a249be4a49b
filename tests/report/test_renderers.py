"""What people and programs read: golden texts of real runs, and hostile text made safe."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from nanodoc.report.layout import in_few_letters
from nanodoc.report.machine import render_github, render_json
from nanodoc.report.report import Report
from nanodoc.report.terminal import Look, render, sparkline
from nanodoc.text import clean

SICK = """\
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return torch.sqrt(self.scale(x).pow(2).mean(1))


def build():
    torch.manual_seed(0)
    model = nn.Sequential(Pool())
    rows = torch.ones(3, 4)
    rows[1] = 0.0
    return {"model": model, "loss_fn": lambda model, batch: model(batch).sum(), "data": [rows],
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 3}
"""


@pytest.fixture
def report(tmp_path: Path) -> Report:
    (tmp_path / "train.py").write_text(SICK)
    made = run_training("train.py:build", Config(device="cpu"))
    # what differs between machines and releases is no part of the golden text
    return replace(
        made,
        nanodoc="0.0",
        vitals=replace(
            made.vitals, overhead=1.0, load_share=0.02, samples_per_second=None, peak_memory=None
        ),
    )


def test_the_full_report(report: Report, golden: Callable[[str, str], None]) -> None:
    golden("full", render(report))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_report_at_other_widths(
    report: Report, width: int, golden: Callable[[str, str], None]
) -> None:
    text = render(report, Look(width=width))
    golden(f"full_{width}", text)
    assert max(map(cell_len, text.splitlines())) <= width


@pytest.mark.parametrize("verbose", [1, 2])
def test_more_of_it(report: Report, verbose: int, golden: Callable[[str, str], None]) -> None:
    golden(f"full_{'v' * verbose}", render(report, Look(width=80, verbose=verbose)))


def test_the_report_in_colour(report: Report, golden: Callable[[str, str], None]) -> None:
    text = render(report, Look(width=80, color=True))
    golden("full_colour", text.replace("\x1b", "<ESC>"))
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == render(report, Look(width=80))


def test_the_report_in_few_letters(report: Report, golden: Callable[[str, str], None]) -> None:
    text = in_few_letters(render(report, Look(width=80)))
    golden("full_ascii", text)
    assert text.isascii()


def test_places_are_links_where_the_terminal_follows_them(report: Report) -> None:
    text = render(report, Look(color=True, links=True))
    (link,) = re.findall(r"\x1b\]8;id=\d+;(.*?)\x1b\\", text)
    assert link.startswith("file:///")
    assert link.endswith("/train.py#L11")
    assert "\x1b]8" not in render(report, Look(color=True))


def test_the_concise_report(report: Report, golden: Callable[[str, str], None]) -> None:
    golden("concise", render(report, concise=True))


def test_the_github_annotations(report: Report, golden: Callable[[str, str], None]) -> None:
    text = render_github(report)
    golden("github", text)
    assert text.startswith("::error file=train.py,line=11,")


def test_the_json_report(report: Report, golden: Callable[[str, str], None]) -> None:
    content = json.loads(render_json(report))
    content["run"] |= {"torch": "", "python": "", "device": ""}
    text = (
        re.sub(r"\d\.\d{5,}(e-?\d+)?", "0.0", json.dumps(content, indent=1, ensure_ascii=False))
        + "\n"
    )
    golden("json", re.sub(r'"seconds": [\d.e-]+', '"seconds": 0.0', text))


OVERFLOW = """\
import torch
import torch.nn.functional as F
from torch import nn


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(4, 8, bias=False), nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)
        for weight, value in ((self.up.weight, 8.0), (self.gate.weight, 16.0), (self.down.weight, 64.0)):
            nn.init.constant_(weight, value)

    def forward(self, x):
        return self.down(self.up(x) * F.relu(self.gate(x)))


def build():
    model = nn.Sequential(Gated(), nn.LayerNorm(4))
    return {"model": model, "loss_fn": lambda model, batch: model(batch).float().mean(), "data": [torch.full((2, 4), 0.5), torch.full((2, 4), 1.5)],
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.0), "amp": {"dtype": "float16", "scaler": False}, "max_steps": 3}
"""


def test_the_frames_of_an_overflow(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    (tmp_path / "train.py").write_text(OVERFLOW)
    made = run_training("train.py:build", Config(device="cpu", frames=True))
    golden("frames", render(replace(made, nanodoc="0.0")))


def test_the_underline_is_under_the_expression(report: Report) -> None:
    lines = render(report).splitlines()
    source = next(i for i, line in enumerate(lines) if "return torch.sqrt" in line)
    start, end = lines[source + 1].index("^"), lines[source + 1].rindex("^") + 1
    assert lines[source][start:end] == "torch.sqrt(self.scale(x).pow(2).mean(1))"


def test_plain_text_has_no_escape_codes(report: Report) -> None:
    assert "\x1b" not in render(report)
    assert "\x1b" in render(report, Look(color=True))


def test_hostile_text_cannot_reach_the_terminal(report: Report) -> None:
    finding = replace(
        report.findings[0], title="\x1b[2Jgone\r::error::x", explanation="a\x07b\x1b]0;t\x07"
    )
    hostile = replace(report, findings=(finding,))
    for text in (render(hostile), render(hostile, concise=True), render_github(hostile)):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert render_github(hostile).count("::error") == 1  # ours
    assert len([line for line in render_github(hostile).splitlines() if line.startswith("::")]) == 1
    assert clean("a\tb\nc\x00") == "a\tb c\\x00"


def test_sparklines() -> None:
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([1.0, float("nan"), float("inf")]) == "▁××"
    assert sparkline([]) == ""
    assert len(sparkline(list(range(1000)))) == 40
    assert sparkline([1e308, -1e308, 0.0]) == "▁▁▁"
