"""A JSON report is shown again as it was, and one that nanodoc did not write is refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanodoc.config import Config
from nanodoc.errors import UsageError
from nanodoc.pipeline.check_grad_graph import check_grad_graph
from nanodoc.pipeline.run import run_training
from nanodoc.report.finding import finding_text
from nanodoc.report.formats import rendered
from nanodoc.report.machine import render_json
from nanodoc.report.page.render import render_html
from nanodoc.report.reader import read_report
from nanodoc.report.terminal import Look
from tests.helpers import nanodoc
from tests.report.test_renderers import SICK


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("reader")
    (folder / "train.py").write_text(SICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return render_json(run_training("train.py:build", Config(device="cpu")))


def test_findings_are_what_they_were(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SICK)
    made = run_training("train.py:build", Config(device="cpu"))
    (tmp_path / "report.json").write_text(render_json(made))
    again = read_report(tmp_path / "report.json")
    assert again.verdict == made.verdict
    for before, after in zip(made.findings, again.findings, strict=True):
        assert after.fingerprint == before.fingerprint
        # whose loss a fix was compared on is not in the report
        fixes = tuple(replace(fix, loss_of="") for fix in before.fixes)
        public = replace(before, fixes=fixes)
        shown = [finding_text(f, None, width=80, verbose=1).plain for f in (public, after)]
        assert shown[0] == shown[1]


def test_the_tree_of_gradients_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SICK)
    made = check_grad_graph("train.py:build", Config(device="cpu", steps=1))
    (tmp_path / "report.json").write_text(render_json(made))
    again = read_report(tmp_path / "report.json").graph
    assert again is not None
    assert made.graph is not None
    for before, after in zip(made.graph.parameters, again.parameters, strict=True):
        assert repr(after) == repr(before)  # a norm may be NaN


def test_the_command_writes_a_page_and_no_other_file(tmp_path: Path, written: str) -> None:
    (tmp_path / "report.json").write_text(written)
    done = nanodoc("view", "report.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "wrote report.html\n")
    assert "sqrt of zero" in (tmp_path / "report.html").read_text()
    assert nanodoc("view", "report.json", cwd=tmp_path).returncode == 0  # over its own page
    (tmp_path / "report.html").write_text("<p>mine</p>")
    refused = nanodoc("view", "report.json", cwd=tmp_path)
    assert refused.returncode == 2
    assert (tmp_path / "report.html").read_text() == "<p>mine</p>"
    shown = nanodoc("view", "report.json", "--output-format", "full", cwd=tmp_path)
    assert "critical[ND301]" in shown.stdout


def test_a_strangers_report_shows_no_file_of_ours(tmp_path: Path, written: str) -> None:
    """It may name any file; only those below the working folder are read."""
    secret = tmp_path / "secret.py"
    content = json.loads(written)
    where = content["findings"][0]["culprit"]["location"]
    secret.write_text("\n" * (where["line"] - 2) + "PASSWORD = 1\n" + where["code"] + "\n")
    where["file"] = str(secret)
    work = tmp_path / "work"
    work.mkdir()
    (work / "report.json").write_text(json.dumps(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        page = render_html(read_report(work / "report.json"), own=False)
    assert "PASSWORD" not in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a JSON report"),
        ("[" * 100_000, "is not a JSON report"),
        ("[]", "is not a nanodoc report"),
        ('{"nanodoc": "1", "run": {}, "schema": 3}', "has schema 3"),
        ('{"nanodoc": "1", "run": {}, "schema": 1, "vitals": {}}', "a run has no 'entrypoint'"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as refused:
        read_report(path)
    assert "\n" not in str(refused.value)


def _places(value: Any, around: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = list(
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [around, *(place for key, part in parts for place in _places(part, (*around, key)))]


def test_small_files_that_ask_for_much(tmp_path: Path, written: str) -> None:
    """Numbers without end, indents of a million, patches that no parser takes, a history of
    somebody else's."""
    outside = tmp_path / "history.jsonl"
    outside.write_text('{"step": 0, "loss": 1.25}\n{"step": 1, "loss": 77.125}\n')
    work = tmp_path / "work"
    work.mkdir()
    path = work / "report.json"
    for change in (
        lambda c: c["vitals"].update(loss_first=10**400),
        lambda c: c["findings"][0]["culprit"]["location"].update(indent=999_999),
        lambda c: c["findings"][0].update(code="\x1b[2J"),
        lambda c: c["findings"][0].update(explanation="-" * 100_000),
    ):
        content = json.loads(written)
        change(content)
        path.write_text(json.dumps(content))
        with pytest.raises(UsageError):
            read_report(path)
    content = json.loads(written)
    content["findings"][0]["fixes"][0]["patch"] = "-" * 19_000 + "1"
    content["artifacts"]["history"] = str(outside)
    path.write_text(json.dumps(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        assert "77.1" not in rendered(read_report(path), "html", Look(), beside=work)


WEIRD = st.sampled_from([None, True, -1, 2**70, 1e308, "nan", "", "x\0\x1b[31m", [], {}, [[]]])


@settings(
    max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), value=WEIRD)
def test_a_report_with_a_wrong_value_is_shown_or_refused(
    tmp_path: Path, written: str, data: st.DataObject, value: Any
) -> None:
    content = json.loads(written)
    place = data.draw(st.sampled_from([p for p in _places(content) if p]))
    at = content
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content))
    try:
        report = read_report(path)
    except UsageError:
        return
    assert "<!doctype html>" in render_html(report, own=False)
