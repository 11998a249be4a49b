"""The report as a page: one file that says what the terminal says, asks for nothing, and shows
hostile names as text."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from nanodoc.config import Config
from nanodoc.facts.frames import Magnitude
from nanodoc.facts.source import SourceSpan
from nanodoc.pipeline.check_grad_graph import check_grad_graph
from nanodoc.pipeline.run import run_training
from nanodoc.report.formats import rendered
from nanodoc.report.page.charts import Curve, bars, curves, history_of, maps
from nanodoc.report.page.plot import BOTTOM, LEFT, RIGHT, TOP, plotted
from nanodoc.report.page.render import render_html
from nanodoc.report.page.source import lines_of
from nanodoc.report.report import Report
from nanodoc.report.terminal import Look
from tests.report.test_renderers import SICK

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'\x1b[31m\u202e{{ 7 * 7 }}"
)
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Report, Path]]:
    """A run of three steps whose last is sick, and its folder."""
    folder = tmp_path_factory.mktemp("page")
    source = SICK.replace('"data": [rows]', '"data": [rows + 1, rows + 2, rows]')
    (folder / "train.py").write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield run_training("train.py:build", Config(device="cpu")), folder


def page_of(run: tuple[Report, Path], **changes: Any) -> str:
    report, folder = run
    return render_html(replace(report, **changes), history=folder / "nanodoc-out" / "history.jsonl")


class Text(HTMLParser):
    """What is to be read on a page, and the elements that it is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.said: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.said).split())


def test_it_says_what_the_terminal_says(
    sick: tuple[Report, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sick[1])
    text = Text(page_of(sick)).text
    for said in (
        "critical ND301 sqrt of zero has an infinite gradient",
        "train.py:11:16 in Pool.forward, module 0 (Pool)",
        "return torch.sqrt(self.scale(x).pow(2).mean(1))",
        "The derivative 1/(2·sqrt(x)) is infinite at zero",
        "1 of the batch",
        "verified by replay",
        "+ return torch.sqrt(self.scale(x).pow(2).mean(1).clamp_min(1e-12))",
        "✗ fails again, bitwise the same",
        "The experiments point to the data",
        "nanodoc explain ND301",
        "entrypoint: train.py:build",
    ):
        assert said in text
    assert "def forward(self, x):" in text  # a line around it


def test_it_is_one_file_that_asks_for_nothing(sick: tuple[Report, Path]) -> None:
    page = page_of(sick)
    assert len(page.encode()) < 1_000_000
    found = Text(page).elements
    names = {tag for tag, _ in found}
    assert not names & {"img", "iframe", "link", "object", "embed", "base", "form"}
    assert all("src" not in attributes for _, attributes in found)
    assert all(not (a.get("href") or "#").partition("#")[0] for _, a in found)
    policy = next(a["content"] for _, a in found if "http-equiv" in a)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]


def span(file: str, line: int, last: int, columns: tuple[int, int], code: str) -> SourceSpan:
    return SourceSpan(
        file=file,
        line=line,
        end_line=last,
        column=columns[0],
        end_column=columns[1],
        function=code,
        code=code,
    )


def hostile(report: Report) -> Report:
    (finding, *_) = report.findings
    where = span(HOSTILE, 1, 1, (1, 5), HOSTILE)
    link = replace(finding.chain[0], op=HOSTILE, module=HOSTILE, dtype=HOSTILE)
    fix = replace(finding.fixes[0], title=HOSTILE, patch=f"{HOSTILE}\n{HOSTILE}")
    bad = replace(
        finding,
        title=HOSTILE,
        explanation=HOSTILE,
        culprit=replace(
            finding.culprit, module=HOSTILE, module_type=HOSTILE, parameter=HOSTILE, location=where
        ),
        evidence=((HOSTILE, HOSTILE),),
        effects=((HOSTILE, 1),),
        experiments=({"name": HOSTILE, "outcome": HOSTILE},),
        chain=(link, link),
        fixes=(fix,),
    )
    return replace(
        report,
        findings=(bad,),
        run=replace(report.run, entrypoint=HOSTILE, device=HOSTILE, torch=HOSTILE),
        not_checked=((HOSTILE, HOSTILE),),
        artifacts={HOSTILE: HOSTILE},
    )


def test_the_text_of_the_page(
    sick: tuple[Report, Path], golden: Callable[[str, str], None]
) -> None:
    report, _ = sick
    shown = replace(report, nanodoc="0.0", run=replace(report.run, torch="2", python="3"))
    shown = replace(shown, vitals=replace(report.vitals, peak_memory=None), artifacts={})
    golden("page", Text(render_html(shown)).text.replace(". ", ".\n") + "\n")


def test_hostile_names_are_text(sick: tuple[Report, Path]) -> None:
    page = render_html(hostile(sick[0]))
    found = Text(page)
    assert [tag for tag, _ in found.elements].count("script") == 1
    assert not any(tag == "img" for tag, _ in found.elements)
    assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)
    assert "alert(1)" in found.text
    assert "{{ 7 * 7 }}" in found.text
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_who_gets_a_gradient_is_a_tree(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SICK)
    report = check_grad_graph("train.py:build", Config(device="cpu", steps=1))
    text = Text(render_html(report)).text
    assert "Which parameters get a gradient" in text
    assert re.search(r"scale Linear 1 parameter weight \[4, 4\] gets gradient norm", text)


def test_a_changed_file_is_not_shown_around_the_statement(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("a = 1\nb = two(3)\nc = 4\n")
    where = span(str(file), 2, 2, (5, 11), "b = two(3)")
    assert [line.number for line in lines_of(where, files=True)] == [1, 2, 3]
    assert "<mark>" in lines_of(where, files=True)[1].markup
    assert [line.number for line in lines_of(where, files=False)] == [2]
    file.write_text("something = else_()\n\n\n")
    assert [line.number for line in lines_of(where, files=True)] == [2]


def test_lines_around_hold_no_credentials(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text('api_key = "sk-aaaaaaaaaaaaaaaa"\nb = two(3)\n')
    where = span(str(file), 2, 2, (5, 11), "b = two(3)")
    assert "sk-aaaa" not in "".join(line.markup for line in lines_of(where, files=True))


def test_curves_and_maps_of_a_history(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    lines: list[Any] = [{"nanodoc_history": 1}]
    for step in range(5000):
        loss = "nan" if step == 4999 else 1.0 / (step + 1) + (10.0 if step == 2500 else 0.0)
        line = {"step": step, "loss": loss, "grad_norm": 1.0 + step % 3, "lr": 0.1, "scale": None}
        if step % 100 == 0:
            layers = {"body.0": [0.0, 10.0 ** (step / 1000), 0.1], "head": [0.0, 0.0, 1.0]}
            line["sampled"] = {"step": step, "update_ratios": [1e-3], "layers": layers}
        lines.append(line)
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\nno json\n[1]\n")
    found = {curve.title: curve for curve in curves(history_of(path))}
    assert found.keys() == {"loss", "gradient norm"}  # the rate never changes
    assert len(found["loss"].steps) <= 2002
    assert 2500 in found["loss"].steps  # a spike is not thinned away
    assert found["loss"].bad == [4999]
    assert "not finite at step 4999" in found["loss"].told
    ratio, spread = maps(history_of(path))
    assert [name for name, _ in spread.rows] == ["body.0", "head"]
    shares = [cell[0] for cell in spread.rows[0][1] if cell is not None]
    assert shares == sorted(shares)
    assert len(ratio.steps) <= 40


def test_maps_of_each_layers_parameters(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    lines = [
        {
            "step": step,
            "sampled": {
                "step": step,
                "update_ratios": [1e-3],
                "parameters": {"body.0": [10.0**step, 1e-3], "head": [None, 1e-2]},
            },
        }
        for step in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    norms, ratios = maps(history_of(path))
    assert [name for name, _ in norms.rows] == [name for name, _ in ratios.rows]
    first = [cell[1] for cell in norms.rows[0][1] if cell is not None]
    assert (norms.rows[0][0], first) == ("body.0", ["1", "10", "100"])
    assert norms.rows[1] == ("head", [None] * 3)


def test_the_layers_of_the_step_that_failed(tmp_path: Path, monkeypatch: Any) -> None:
    """Their own outputs, the first one that is not finite among them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SICK.replace("rows[1] = 0.0", "rows[1] = float('nan')"))
    report = run_training("train.py:build", Config(device="cpu", budget=0.0, output_format="html"))
    assert [(one.module, one.nonfinite > 0) for one in report.magnitudes] == [
        ("0.scale", True),
        ("0", True),
    ]
    assert "Layers in the failed step" in Text(render_html(report)).text
    healthy = [
        Magnitude(module=str(i), module_type="Linear", absmax=10.0**i, nonfinite=0)
        for i in range(100)
    ]
    bad = Magnitude(module="bad", module_type="Linear", absmax=math.inf, nonfinite=3)
    shown = bars([*healthy, bad, *healthy[:5]]).rows
    assert len(shown) <= 60
    assert ("bad", "Linear", 1.0, "3 not finite", True) in shown
    shares = [share for _, _, share, _, _ in shown[:50]]
    assert shares == sorted(shares)


def drawn(tmp_path: Path, values: list[Any], failing: list[int]) -> Curve:
    """The curve of a loss with these values."""
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join(json.dumps({"step": i, "loss": v}) for i, v in enumerate(values)))
    (curve,) = curves(history_of(path), failing)
    return curve


def test_a_chart_has_ticks_labels_and_the_step_of_the_finding(tmp_path: Path) -> None:
    plot = drawn(tmp_path, [2.4, 2.3, 2.1, 2.0, "nan"], [4]).plot
    assert plot is not None
    assert not plot.log
    assert [text for _, text in plot.y_ticks] == ["2.0", "2.1", "2.2", "2.3", "2.4"]
    assert [text for _, text in plot.x_ticks] == ["0", "1", "2", "3", "4"]
    assert plot.failing == plot.bad == [(RIGHT, 4)]
    assert [text for _, _, text in plot.strips][-2:] == ["step 3: 2", "step 4: not finite"]
    assert sum(width for _, width, _ in plot.strips) == pytest.approx(RIGHT - LEFT)


def test_values_over_many_decades_are_on_a_log_scale(tmp_path: Path) -> None:
    plot = drawn(tmp_path, [2361.0, 1e9, 1e20, 3e36], []).plot
    assert plot is not None
    assert plot.log
    assert [text for _, text in plot.y_ticks] == ["1000", "1e10", "1e17", "1e24", "1e31"]
    plot = drawn(tmp_path, [0.5, 1e-3, 0.02], []).plot
    assert plot is not None
    assert [text for _, text in plot.y_ticks] == ["0.001", "0.01", "0.1", "1"]


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 1.0, 1.0],
        [0.0, 0.0, 0.0],
        [0.001, 0.001, 0.00099999],
        [1e308, -1e308, 1.7e308],
        [5e-324, 1.7e308, 1.0],
        [5e-324, 0.0, 0.0],
        [1e15, 1e15 + 1, 1e15 + 2],
        [-3.0, None, 4.0],
        [None, None, None],
    ],
)
def test_every_curve_can_be_drawn(values: list[float | None]) -> None:
    """Within its frame, with ticks, whatever its values are."""
    plot = plotted([0, 1, 2**53], values, failing=[1])
    assert len(plot.y_ticks) >= 2
    assert all(len(text) <= 9 for _, text in plot.y_ticks)
    assert all(TOP - 1 <= y <= BOTTOM + 1 for y, _ in plot.y_ticks)
    places = [float(n) for n in re.findall(r"[\d.e+-]+", plot.line)]
    assert all(LEFT <= x <= RIGHT for x in places[::2])
    assert all(TOP - 1 <= y <= BOTTOM + 1 for y in places[1::2])


def test_steps_that_are_no_steps_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(
        "\n".join(f'{{"step": {n}, "loss": 1}}' for n in ("1e3", "true", "-1", "9" * 400))
    )
    assert history_of(path) == []


def test_many_values_have_a_running_mean(tmp_path: Path) -> None:
    curve = drawn(tmp_path, [1.0 + step % 2 for step in range(4000)], [])
    assert len(curve.means) == 60
    assert all(value == pytest.approx(1.5, rel=0.01) for _, value in curve.means)
    assert curve.plot is not None
    assert curve.plot.mean
    assert len(curve.plot.strips) <= 161
    assert drawn(tmp_path, [1.0, 2.0, 3.0], []).means == []


def test_the_page_draws_charts_with_labels_and_legends(sick: tuple[Report, Path]) -> None:
    page = page_of(sick)
    found = Text(page)
    assert [tag for tag, _ in found.elements].count("figure") >= 2
    for said in ("L2 norm", "step of a finding: 2", "not finite", "step 0: "):
        assert said in found.text
    labels = [a.get("aria-label") or "" for tag, a in found.elements if tag == "svg"]
    assert any(label.startswith("loss: ") for label in labels)


def test_the_way_of_a_bad_value_says_line_and_module(sick: tuple[Report, Path]) -> None:
    text = Text(page_of(sick)).text
    assert "mm line 11 in module 0.scale" in text
    shown = rendered(sick[0], "full", Look(verbose=1))
    assert "(line 11 in module 0.scale)" in " ".join(shown.split())


def test_no_history_is_no_curve(tmp_path: Path) -> None:
    assert history_of(None) == history_of(tmp_path / "none.jsonl") == []


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
@pytest.mark.parametrize("width", [400, 1200, 2000])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it(sick: tuple[Report, Path], width: int, scheme: Any) -> None:
    """Without an error, without a request, and without a line that runs out of the page."""
    sync_api = pytest.importorskip("playwright.sync_api")
    folder = sick[1]
    (folder / "report.html").write_text(page_of(sick), encoding="utf-8")
    (folder / "hostile.html").write_text(render_html(hostile(sick[0])), encoding="utf-8")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        errors: list[str] = []
        asked: list[str] = []
        tab.on("console", lambda message: errors.append(message.text))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("dialog", lambda dialog: errors.append(dialog.message))
        tab.on("request", lambda request: asked.append(request.url))
        for name in ("report.html", "hostile.html"):
            tab.goto((folder / name).as_uri())
            assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        tab.goto((folder / "report.html").as_uri())
        charts = tab.locator("svg.chart").count()
        assert charts == tab.locator(".chart .curve:not(.faint)").count() >= 2
        tab.locator(".strip").first.hover()
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.tagName") == "A"
        tab.locator("summary").first.click()
        assert tab.locator("details[open]").count() >= 1
        tab.locator("#copy").click()
        tab.wait_for_function("document.getElementById('copy').textContent !== 'Copy'")
        browser.close()
    assert errors == []
    assert {url.rpartition("/")[2] for url in asked} <= {"report.html", "hostile.html"}
