"""Bad input gets one clear line on stderr and exit code 2, never a traceback of nanodoc's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc

GOOD = """
import torch
def build():
    model = torch.nn.Linear(2, 1)
    return {"model": model, "loss_fn": LOSS, "data": DATA, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 2}
"""


def recipe(loss: str = "lambda m, b: m(b).mean()", data: str = "[torch.ones(3, 2)]") -> str:
    return GOOD.replace("LOSS", loss).replace("DATA", data)


CASES = {
    "missing file": (None, ["run", "nowhere.py:build"], "no such file: nowhere.py"),
    "syntax error": ("def build(:\n    pass\n", ["run", "train.py:build"], "train.py:1"),
    "no such name": ("def build(): ...\n", ["run", "train.py:biuld"], "did you mean 'build'?"),
    "not callable": ("build = 3\n", ["run", "train.py:build"], "not callable"),
    "wrong return": (
        "def build(): return 3\n",
        ["run", "train.py:build"],
        "build() returned a int; return a dict",
    ),
    "returns None": ("def build(): ...\n", ["run", "train.py:build"], "build() returned None"),
    "unknown key": (
        "import torch\ndef build(): return {'modle': 1}\n",
        ["run", "train.py:build"],
        "did you mean 'model'?",
    ),
    "no loss": (
        "import torch\ndef build(): return {'model': torch.nn.Linear(1, 1), 'data': []}\n",
        ["run", "train.py:build"],
        "build() returned no loss",
    ),
    "loss not scalar": (
        recipe("lambda m, b: m(b)"),
        ["run", "train.py:build"],
        "the loss has shape (3, 1)",
    ),
    "loss not a tensor": (
        recipe("lambda m, b: 1.0"),
        ["run", "train.py:build"],
        "the loss is a float",
    ),
    "empty data": (recipe(data="[]"), ["run", "train.py:build"], "the data is empty"),
    "no such device": (
        recipe(),
        ["run", "train.py:build", "--device", "cuda:99"],
        "--device cuda:99",
    ),
    "no device at all": (
        recipe(),
        ["run", "train.py:build", "--device", "teapot"],
        "'teapot' is not a torch device; available: cpu",
    ),
    "missing config": (
        recipe(),
        ["run", "train.py:build", "--config", "no.yaml"],
        "no such config file",
    ),
    "no such rule": (recipe(), ["run", "train.py:build", "--select", "ND999"], "no rule 'ND999'"),
    "bad steps": (recipe(), ["run", "train.py:build", "--steps", "0"], "at least 1"),
    "bad format": (
        recipe(),
        ["run", "train.py:build", "--output-format", "xml"],
        "one of full, concise, json, github",
    ),
    "unknown option": (None, ["run", "train.py:build", "--stepz", "3"], "No such option: --stepz"),
    "missing argument": (None, ["run"], "what is to be run? A script: nanodoc run train.py"),
    "not a number": (
        None,
        ["run", "train.py:build", "--steps", "many"],
        "Invalid value for '--steps'",
    ),
    "explain": (None, ["explain", "ND31"], "no rule 'ND31'"),
    "no patient": (None, ["demo", "generalized-mean"], "did you mean 'generalised-mean'?"),
    "no snapshot": (None, ["replay", "nowhere.pt"], "no such snapshot"),
    "env format": (None, ["env", "--output-format", "xml"], "one of full, json"),
    "net format": (None, ["net", "--output-format", "xml"], "one of full, json"),
    "net backend": (None, ["net", "--backend", "smoke"], "one of gloo, nccl"),
    "net timeout": (None, ["net", "--timeout", "0"], "between 1 and 86400"),
    "net sizes": (None, ["net", "--sizes", "1,big"], "whole numbers of MiB"),
    "net ranks": (None, ["net", "--nproc", "0"], "at least 1"),
    "net drill": (None, ["net", "--nproc", "2", "--drill", "5:die"], "there are 2 ranks"),
    "net without ranks": (None, ["net", "--output-format", "json"], "RANK is not set"),
    "bad entrypoint": (None, ["run", "train.py:a-b"], "is not FILE.py:NAME"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_clear_line_and_exit_2(name: str, tmp_path: Path) -> None:
    source, arguments, said = CASES[name]
    if source is not None:
        (tmp_path / "train.py").write_text(source)
    done = nanodoc(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: [", "bad YAML in c.yaml:1"),
        ("stepps: 3", "unknown key 'stepps'; did you mean 'steps'?"),
        ("steps: many", "it must be a whole number"),
        ("- 1\n- 2", "must hold a mapping"),
        ("fail-on: sometimes", "one of critical, warning, never"),
        ("recipe: 3", "a mapping that build(config) is given"),
    ],
)
def test_bad_yaml(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(recipe())
    (tmp_path / "c.yaml").write_text(text)
    done = nanodoc("run", "train.py:build", "--config", "c.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_unknown_key_in_pyproject(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(recipe())
    (tmp_path / "pyproject.toml").write_text("[tool.nanodoc]\ndevise = 'cpu'\n")
    done = nanodoc("run", "train.py:build", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'device'?" in done.stderr
