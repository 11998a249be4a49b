"""The line on learning in every form of a report, and what a verdict says was asked."""

from __future__ import annotations

import json
from pathlib import Path

from nanodoc.facts.learning import Learning
from nanodoc.report.machine import render_json
from nanodoc.report.markdown import render_markdown
from nanodoc.report.page.render import render_html
from nanodoc.report.reader import read_report
from nanodoc.report.report import Report, RunInfo, VitalSigns
from nanodoc.report.terminal import render


def report(learning: Learning | None, *checked: str) -> Report:
    info = RunInfo(
        entrypoint="train.py",
        command="run",
        config={},
        device="cpu",
        amp=None,
        seed=None,
        steps_requested=40,
        steps_run=40,
        torch="2",
        python="3",
    )
    vitals = VitalSigns(steps=40, losses=(2.0, 1.0))
    return Report(nanodoc="0", run=info, vitals=vitals, learning=learning, checked=checked)


LEARNT = Learning(loss="cross_entropy", value=0.31, constant=2.303)


def test_every_form_has_the_line(tmp_path: Path) -> None:
    whole = report(LEARNT, "finite losses", "padding")
    said = "cross_entropy 0.31 at the end, 2.303 for the best constant answer"
    assert said in render(whole)
    assert said in render_html(whole)
    assert said.replace("_", "\\_") in render_markdown(whole)
    text = render_json(whole)
    assert json.loads(text)["learning"]["constant"] == 2.303
    (tmp_path / "report.json").write_text(text)
    assert read_report(tmp_path / "report.json").learning == LEARNT


def test_the_second_figure_and_the_reason() -> None:
    both = Learning(loss="mse_loss", value=0.2, constant=1.0, other_inputs=1.9, terms=2)
    assert "mse_loss (largest of 2 terms) 0.2" in both.text
    assert "1.9 with the inputs of other samples" in both.text
    none = Learning(loss="", why="the last steps were not run again")
    assert none.text == "not compared with a constant answer: the last steps were not run again"


def test_a_verdict_says_what_was_asked() -> None:
    asked = render(report(LEARNT, "finite losses", "padding"))
    assert "checked: finite losses, padding" in asked
    assert "nothing was asked" not in asked
    assert "; nothing was asked but finite losses" in render(report(None, "finite losses"))
    assert "Checked: finite losses, padding" in render_markdown(
        report(LEARNT, "finite losses", "padding")
    )
