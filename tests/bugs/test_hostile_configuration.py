"""Configurations, options and file names that ended in an internal error, hung, or had a file of
the user's overwritten."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nanodoc.cli.options import settings_of
from nanodoc.config import load_config
from nanodoc.errors import UsageError
from nanodoc.loop.history import History
from tests.helpers import nanodoc

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(8)
)
YAML = {
    "few aliases for very many values": BOMB,
    "deep": "recipe: " + "[" * 5000 + "]" * 5000,
    "half as deep": "recipe: " + "[" * 60 + "]" * 60,
    "a value that holds itself": "recipe: &a {x: *a}\n",
    "a number of 5000 digits": "steps: " + "9" * 5000 + "\n",
    "a date that is none": "recipe: {d: 2020-99-99}\n",
    "a threshold of 400 digits": "thresholds: {dead-units.share: " + "9" * 400 + "}\n",
    "a threshold that is NaN": "thresholds: {dead-units.share: .nan}\n",
    "a threshold below 0": "thresholds: {dead-units.share: -1}\n",
    "a null byte": 'snapshot-dir: "a\\0b"\n',
    "a lone surrogate": 'snapshot-dir: "\\ud800"\n',
    "a seed that no generator takes": "seed: 99999999999999999999\n",
    "a step beyond counting": "trace-steps: [9999999999999]\n",
    "no time at all": "timeout: 0\n",
    "a time without end": "timeout: 1" + "0" * 400 + "\n",
}
TOML = {
    "no table": "tool = 1\n",
    "a list of tables": "[[tool]]\nnanodoc = 1\n",
    "deep": "x = " + "[" * 5000 + "]" * 5000,
    "a number of 5000 digits": "[tool.nanodoc]\nsteps = " + "9" * 5000 + "\n",
}


@pytest.mark.parametrize("text", YAML.values(), ids=YAML)
def test_yaml_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "nanodoc.yaml"
    file.write_text(text)
    began = time.perf_counter()
    with pytest.raises(UsageError) as refused:
        load_config(file, {}, tmp_path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400 + len(str(tmp_path))
    assert time.perf_counter() - began < 30  # it hung


@pytest.mark.parametrize("text", TOML.values(), ids=TOML)
def test_toml_is_refused_or_says_nothing_of_nanodoc(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    if "tool = 1" in text or "[[tool]]" in text:
        assert load_config(None, {}, tmp_path).steps is None
        return
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        load_config(None, {}, tmp_path)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"steps": 2**70}, "at most"),
        ({"seed": 2**64}, "at most"),
        ({"stepz": 1}, "did you mean 'steps'"),
        ({"xyzzy": 1}, "unknown key 'xyzzy'$"),
        ({"select": "ND301", "ignore": "ND301"}, "leave no rule"),
    ],
)
def test_options_have_bounds(flags: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        settings_of(flags)


def test_the_report_takes_the_place_of_reports_only(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("import torch\n")
    with pytest.raises(UsageError, match="is not a nanodoc report"):
        settings_of({"output": str(source)})


BUILD = """
import torch
from torch import nn

def build():
    model = nn.Linear(4, 2)
    data = [(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))] * 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0] * 1e30), batch[1])
    return {"model": model, "loss_fn": loss, "data": data, "optimizer": optimizer}
"""


@pytest.mark.parametrize(
    ("command", "form"),
    [
        *(("run", form) for form in ("full", "concise", "json", "github")),
        *(("check-grad-graph", form) for form in ("tree", "json", "dot")),
    ],
)
def test_a_report_takes_the_place_of_an_earlier_one(
    command: str, form: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(BUILD)
    option = "--output-format"
    for _ in range(2):
        done = nanodoc(command, "train.py:build", option, form, "--output", "report", cwd=tmp_path)
        assert done.returncode in (0, 1), done.stderr


def test_a_link_a_pipe_and_another_runs_history_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "history-2.jsonl")
    first, second = History(tmp_path), History(tmp_path)
    assert (first.path.name, second.path.name) == ("history-3.jsonl", "history-4.jsonl")
    first.close()
    second.close()
    assert not (tmp_path / "elsewhere").exists()
    again = History(tmp_path)
    assert again.path.name == "history-3.jsonl"
    again.close()
