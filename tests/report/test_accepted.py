"""Findings that the user accepts: by a comment, in the configuration, by a baseline. They are told in
every format, and fail nothing; what is new still does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

import nanodoc as package
from nanodoc.cli.common import exit_code
from nanodoc.config import FORMATS, Config, load_config
from nanodoc.errors import UsageError
from nanodoc.pipeline.accepted import read_baselines, with_accepted
from nanodoc.pipeline.run import run_training
from nanodoc.report.accepted import ignores_of
from nanodoc.report.formats import rendered
from nanodoc.report.report import Report
from nanodoc.report.terminal import Look
from tests.helpers import nanodoc, report_of
from tests.report.test_page import HOSTILE
from tests.report.test_renderers import SICK as BROKEN

SICK = """\
import torch
from torch import nn


def compare(model, batch):
    x, y = batch
    return ((model(x) - y) ** 2).mean()


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 1))
    data = [(torch.randn(8, 4), torch.randn(8)) for _ in range(4)]
    return {"model": model, "loss_fn": compare, "data": data,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 4}
"""
LINE = "return ((model(x) - y) ** 2).mean()"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SICK)
    return tmp_path


def in_a_process(folder: Path, *arguments: str) -> tuple[int, str]:
    done = nanodoc("run", "train.py:build", "--device", "cpu", "--quiet", *arguments, cwd=folder)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def run(**options: Any) -> tuple[int, str]:
    """The exit code and the text of the report, its lines joined."""
    config = load_config(None, {"device": "cpu", "budget": "0s", **options})
    known = read_baselines(config)
    report = with_accepted(run_training("train.py:build", config), config, known)
    return exit_code(report, config.fail_on), " ".join(rendered(report, "full", Look()).split())


def test_a_baseline_from_the_first_run_to_a_new_finding(folder: Path) -> None:
    code, text = in_a_process(folder, "--write-baseline", "nanodoc-baseline.json")
    assert code == 0
    assert "accepted by nanodoc-baseline.json: ND111 broadcast-loss (train.py:7)" in text
    code, text = in_a_process(folder)
    assert code == 0
    assert "verdict: nothing found (1 accepted" in text
    # lines shift, and the finding is the same
    source = "# a new head\n\n" + SICK
    (folder / "train.py").write_text(source)
    code, text = run()
    assert code == 0
    assert "(train.py:9)" in text
    # the same mistake in another line is new
    other = source.replace(LINE, "return (model(x) - y).square().mean()")
    (folder / "train.py").write_text(other)
    code, text = run()
    assert code == 1
    assert "critical[ND111]" in text
    assert run(write_baseline="nanodoc-baseline.json")[0] == 0
    assert run()[0] == 0
    assert run(baseline="off")[0] == 1


def test_a_comment_at_the_line(folder: Path) -> None:
    told = LINE + "  # nanodoc: ignore[ND111] all pairs are wanted"
    (folder / "train.py").write_text(SICK.replace(LINE, told))
    code, text = run()
    assert code == 0
    assert (
        "accepted by the comment at train.py:7: ND111 broadcast-loss: all pairs are wanted" in text
    )
    assert "unused" not in text


def test_a_comment_that_accepts_nothing_is_told(folder: Path) -> None:
    told = SICK.replace(LINE, "return ((model(x)[:, 0] - y) ** 2).mean()")
    told = told.replace("x, y = batch", "x, y = batch  # nanodoc: ignore[ND3]")
    (folder / "train.py").write_text(told)
    code, text = run()
    assert code == 0
    assert "unused: # nanodoc: ignore[ND3] at train.py:6 matched no finding in this run" in text
    # where rules are left out, it may be for one of those
    assert "unused" not in run(ignore="ND302")[1]


def test_a_comment_for_another_rule_accepts_nothing(folder: Path) -> None:
    (folder / "train.py").write_text(SICK.replace(LINE, LINE + "  # nanodoc: ignore[ND301]"))
    code, text = run()
    assert code == 1
    assert "unused: # nanodoc: ignore[ND301] at train.py:7" in text


@pytest.mark.parametrize(
    ("allowed", "code"),
    [
        ("[ND111]", 0),
        ("[broadcast-loss]", 0),
        ("[{rule: ND1, file: train.py, reason: known}]", 0),
        ("[{rule: ND111, file: other.py}]", 1),
        ("[{rule: ND111, module: head}]", 1),
    ],
)
def test_allow_in_the_configuration(folder: Path, allowed: str, code: int) -> None:
    ended, text = run(allow=yaml.safe_load(allowed))
    assert ended == code
    assert ("accepted by `allow`: ND111" in text) == (code == 0)


@pytest.mark.parametrize(
    ("allowed", "word"),
    [
        ("5", "list of rules"),
        ("[{file: a.py}]", "list of rules"),
        ("[{rule: ND111, where: 3}]", "list of rules"),
        ("[ND999]", "no rule"),
    ],
)
def test_a_wrong_allow_is_told_before_the_run(folder: Path, allowed: str, word: str) -> None:
    (folder / "nanodoc.yaml").write_text(f"allow: {allowed}\n")
    done = nanodoc("run", "train.py:build", "--config", "nanodoc.yaml", cwd=folder)
    assert done.returncode == 2
    assert word in done.stderr
    assert len(done.stderr.splitlines()) == 1


OVERWRITTEN = SICK.replace(
    LINE, "out = torch.exp(model(x)); loss = (out - y).mean(); out += 1; return loss"
)


@pytest.mark.parametrize(
    "ended",
    [
        SICK.replace(LINE, LINE + ".view(7)  # nanodoc: ignore[ND7]"),
        OVERWRITTEN.replace("return loss", "return loss  # nanodoc: ignore[ND5]"),
        BROKEN.replace("mean(1))", "mean(1))  # nanodoc: ignore[ND3]"),
    ],
    ids=["an error", "an error of the graph", "values that are not finite"],
)
def test_what_ended_the_run_is_never_accepted(ended: str, folder: Path) -> None:
    (folder / "train.py").write_text(ended)
    code, text = run(allow=["ND"], write_baseline="b.json")
    assert code == 1
    assert "nothing found" not in text
    assert "baseline: it was not written: the run did not go to its end" in text
    assert not (folder / "b.json").exists()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("[]", "not a nanodoc baseline"),
        ("{", "not a baseline"),
        ('{"baseline": 2, "nanodoc": "1", "findings": []}', "version"),
        (
            '{"baseline": 1, "nanodoc": "1", "findings": [{"fingerprint": 3, "file": "a.py"}]}',
            "fingerprint",
        ),
        ("[" * 100_000, "not a baseline"),
    ],
)
def test_a_baseline_that_is_none(folder: Path, content: str, word: str) -> None:
    (folder / "b.json").write_text(content)
    with pytest.raises(UsageError, match=word):
        read_baselines(Config(baseline="b.json"))


def test_no_other_file_is_overwritten(folder: Path) -> None:
    (folder / "link.json").symlink_to(folder / "elsewhere.json")
    others = '{"nanodoc": 1, "baseline": {"accuracy": 0.9}}'
    (folder / "results.json").write_text(others)
    for name in ("train.py", "link.json", ".", "results.json"):
        with pytest.raises(UsageError, match="--write-baseline"):
            read_baselines(Config(write_baseline=name))
    assert (folder / "train.py").read_text() == SICK
    assert (folder / "results.json").read_text() == others


def test_a_script_that_breaks_in_its_first_step_has_its_report(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import torch\n"
        "w = torch.nn.Parameter(torch.ones(3))\n"
        "optimizer = torch.optim.SGD([w], lr=0.1)\n"
        "for step in range(3):\n"
        "    optimizer.zero_grad()\n"
        "    h = torch.exp(w)\n"
        "    loss = h.sum()\n"
        "    h += 1  # nanodoc: ignore[ND504]\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    done = nanodoc("run", "train.py", cwd=folder)
    assert done.returncode == 1
    assert "critical[ND504]" in done.stderr


def test_a_run_that_was_not_looked_at_empties_no_baseline(folder: Path) -> None:
    script = (
        "import os, torch\nmodel = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for step in range(4):\n    x, y = torch.randn(8, 4), torch.randn(8)\n"
        "    optimizer.zero_grad()\n    ((model(x) - x[:, 0]) ** 2).mean().backward()\n"
        "    optimizer.step()\n"
    )
    (folder / "train.py").write_text(script)
    assert nanodoc("run", "--write-baseline", "b.json", "train.py", cwd=folder).returncode == 0
    kept = (folder / "b.json").read_text()
    assert "ND111" in kept
    (folder / "train.py").write_text(script + "os._exit(0)\n")
    done = nanodoc("run", "--write-baseline", "b.json", "train.py", cwd=folder)
    assert "baseline: it was not written" in " ".join(done.stderr.split())
    assert (folder / "b.json").read_text() == kept


def test_the_folder_and_the_baseline_may_change_under_the_run(folder: Path) -> None:
    """The baseline is read before, and files go where they were asked for."""
    assert run(write_baseline="nanodoc-baseline.json")[0] == 0
    (folder / "sub").mkdir()
    moving = SICK.replace(
        "    torch.manual_seed(0)",
        "    import os, pathlib\n    pathlib.Path('nanodoc-baseline.json').write_text('{')\n"
        "    os.chdir('sub')\n    torch.manual_seed(0)",
    )
    (folder / "train.py").write_text(moving)
    code, text = in_a_process(folder)
    assert code == 0
    assert "nothing found (1 accepted" in text
    assert (folder / "nanodoc-out/history.jsonl").exists()
    assert list((folder / "sub").iterdir()) == []


def test_check_grad_graph_takes_it(folder: Path) -> None:
    cut = SICK.replace("nn.Linear(4, 1)", "nn.Linear(4, 4), Cut(), nn.Linear(4, 1)")
    cut = cut.replace(
        "def compare",
        "class Cut(nn.Module):\n    def forward(self, x):\n        return x.detach()\n\n\ndef compare",
    )
    (folder / "train.py").write_text(cut)

    def check(*arguments: str) -> int:
        return nanodoc("check-grad-graph", "train.py:build", *arguments, cwd=folder).returncode

    assert check() == 1
    assert check("--write-baseline", "b.json") == 0
    assert check("--baseline", "b.json") == 0


def test_in_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    commented = SICK.replace(LINE, LINE + "  # nanodoc: ignore[ND111] as said")
    (folder / "in_code_recipe.py").write_text(commented)
    import in_code_recipe  # type: ignore[import-not-found]  # written above

    report = package.examine(in_code_recipe.build())
    assert report.verdict == "nothing found"
    (one,) = report.accepted
    assert (one.by, one.reason) == ("comment", "as said")


COMMENTS = """\
text = "# nanodoc: ignore[ND1] in a string"
# nanodoc: ignore[ND2] above
first = call(
    1,  # nanodoc: ignore[ND3, dead-units] inside
)
second = 2  # noqa  # nanodoc: ignore[ND4]
for x in y:  # nanodoc: ignore[]
    pass
"""


def test_which_lines_a_comment_stands_for(folder: Path) -> None:
    (folder / "lines.py").write_text(COMMENTS)
    found = [
        (one.line, one.codes, one.reason, one.lines.start, one.lines.stop - 1)
        for one in ignores_of("lines.py")
    ]
    assert found == [
        (2, ("ND2",), "above", 2, 5),
        (4, ("ND3", "dead-units"), "inside", 2, 5),
        (6, ("ND4",), "", 6, 6),
        (7, (), "", 7, 7),
    ]


@pytest.mark.parametrize(
    "content", [b"\xff\xfe# nanodoc: ignore[ND1]", b"(((# nanodoc: ignore[ND1]\n", b"\0"]
)
def test_a_file_that_is_no_python_has_no_comments(folder: Path, content: bytes) -> None:
    (folder / "odd.py").write_bytes(content)
    assert all(one.codes == ("ND1",) for one in ignores_of("odd.py"))


@pytest.fixture
def accepted(folder: Path) -> Report:
    told = LINE + "  # nanodoc: ignore[ND111] known since spring"
    (folder / "train.py").write_text(SICK.replace(LINE, told))
    config = Config(device="cpu")
    report = with_accepted(run_training("train.py:build", config), config, read_baselines(config))
    assert report.accepted
    return replace(report, nanodoc="0.0", vitals=replace(report.vitals, samples_per_second=None))


@pytest.mark.parametrize("form", [form for form in FORMATS if form not in ("json", "html")])
def test_every_form_tells_it(
    accepted: Report, form: str, golden: Callable[[str, str], None]
) -> None:
    golden(f"accepted_{form}", rendered(accepted, form, Look(width=100)))


def test_the_page_and_json_tell_it(accepted: Report) -> None:
    assert "known since spring" in rendered(accepted, "html", Look())
    (row,) = json.loads(rendered(accepted, "json", Look()))["accepted"]
    assert (row["by"], row["reason"]) == ("comment", "known since spring")
    assert row["finding"]["code"] == "ND111"


def test_a_report_with_accepted_findings_is_read_back(folder: Path, accepted: Report) -> None:
    (folder / "report.json").write_text(rendered(accepted, "json", Look()))
    again = nanodoc("view", "report.json", "--output-format", "json", cwd=folder)
    assert (
        report_of(again)["accepted"] == json.loads((folder / "report.json").read_text())["accepted"]
    )


@pytest.mark.parametrize("form", FORMATS)
def test_hostile_reasons_are_text(accepted: Report, form: str) -> None:
    rows = tuple(replace(one, reason=HOSTILE, place=HOSTILE) for one in accepted.accepted)
    text = rendered(replace(accepted, accepted=rows), form, Look())
    assert "\x1b" not in text
    assert "<img" not in text.replace("\\<img", "") or form in (
        *("json", "sarif", "gitlab", "full", "concise", "github"),
    )
    if form == "junit":
        assert ElementTree.fromstring(text).find(".//img") is None


def test_toml_takes_allow(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[tool.nanodoc]\nallow = [{rule = "ND111", reason = "x"}]\n'
    )
    assert load_config(None, {}).allow == ({"rule": "ND111", "reason": "x"},)
