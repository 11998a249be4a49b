"""What other repositories use of this one: the GitHub action and the pre-commit hooks, run as their
readers run them. And the versions that the workflow tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import nanodoc
from tests.report.test_renderers import SICK

ROOT = Path(__file__).resolve().parents[2]
HEALTHY = (
    SICK.replace("rows[1] = 0.0", "pass").replace("ones(3", "rand(3").replace("lr=0.1", "lr=1e-4")
)
SCRIPT = """
import sys
import torch

rate, name = sys.argv[1:]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(rate))
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(name)
"""


def step_of_the_action(folder: Path, **inputs: str) -> tuple[int, dict[str, str], str, str]:
    """(exit code, outputs, the job's summary, what was printed) of its step that runs nanodoc."""
    action: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = (one for one in action["runs"]["steps"] if one.get("id") == "run")
    values = {name: str(one.get("default", "")) for name, one in action["inputs"].items()} | inputs
    told = {
        key: value.removeprefix("${{ inputs.").removesuffix(" }}")
        for key, value in step["env"].items()
    }
    assert set(told.values()) <= set(values)
    assert "${{" not in step["run"], "an input inside the command could hold a command"
    paths = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for path in paths.values():
        Path(path).touch()
    environment = {key: values[name] for key, name in told.items()}
    done = subprocess.run(
        # as the runner starts a bash step
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={
            **os.environ,
            **paths,
            **environment,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    rows = Path(paths["GITHUB_OUTPUT"]).read_text().splitlines()
    outputs = dict(row.split("=", 1) for row in rows)
    summary = Path(paths["GITHUB_STEP_SUMMARY"]).read_text()
    return done.returncode, outputs, summary, done.stdout + done.stderr


def test_a_sick_recipe_fails_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SICK)
    code, outputs, summary, printed = step_of_the_action(tmp_path, target="train.py:build")
    assert code == 1
    assert outputs == {"exit-code": "1", "sarif": "nanodoc-reports/nanodoc.sarif"}
    assert "::error file=train.py,line=11," in printed
    assert "nanodoc: critical" in summary
    found = json.loads((tmp_path / outputs["sarif"]).read_text())
    assert found["runs"][0]["results"][0]["ruleId"] == "ND301"
    written = {path.name for path in (tmp_path / "nanodoc-reports").iterdir()}
    assert {"nanodoc.xml", "nanodoc.html", "nanodoc.json", "nanodoc-step0.pt"} <= written


def test_a_script_is_given_its_arguments_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "my train.py").write_text(SCRIPT)
    code, outputs, _, printed = step_of_the_action(
        tmp_path, target="'my train.py'", arguments="1e-3 'a; touch pwned'", options="--quiet"
    )
    assert code == 0, printed
    assert outputs["exit-code"] == "0"
    assert "a; touch pwned\n" in printed
    assert not (tmp_path / "pwned").exists()


def test_an_unusable_option_ends_in_2(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEALTHY)
    code, outputs, _, printed = step_of_the_action(
        tmp_path, target="train.py:build", options="--steps none"
    )
    assert (code, outputs) == (2, {"exit-code": "2"})
    assert "--steps" in printed


def test_a_quote_that_is_not_closed_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    code, outputs, _, printed = step_of_the_action(
        tmp_path, target="train.py", arguments="--name O'Brien"
    )
    assert code not in (0, 1) or "No closing quotation" in printed
    assert outputs == {}
    assert not (tmp_path / "ran").exists()


HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: str(hook["id"]))
def test_a_hook_fails_on_what_it_finds(hook: dict[str, Any], tmp_path: Path) -> None:
    assert {"id", "name", "entry", "language"} <= set(hook)
    cut = SICK.replace("self.scale(x)", "self.scale(x).detach()")
    codes = []
    for text in (HEALTHY, cut):
        (tmp_path / "train.py").write_text(text)
        program, *arguments = hook["entry"].split()
        assert program == "nanodoc"
        codes.append(nanodoc(*arguments, "train.py:build", cwd=tmp_path).returncode)
    assert codes == [0, 1]


WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


@pytest.mark.skipif(not WORKFLOW.exists(), reason="the sdist has no workflow")
def test_the_workflow_tests_the_versions_that_the_package_names() -> None:
    pairs = yaml.safe_load(WORKFLOW.read_text())["jobs"]["tests"]["strategy"]["matrix"]["include"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [one.rpartition(" :: ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    assert sorted({pair["python"] for pair in pairs}) == sorted(named)
    assert project["requires-python"] == f">={pairs[0]['python']}"
    assert f"torch>={pairs[0]['torch']}" in project["dependencies"]
    versions = [tuple(int(part) for part in pair["torch"].split(".")) for pair in pairs]
    assert versions == [(2, minor) for minor in range(versions[0][1], versions[-1][1] + 1)]
    pythons = [int(pair["python"].rpartition(".")[2]) for pair in pairs]
    assert pythons == sorted(pythons), "the newest torch is tested with the newest Python"
