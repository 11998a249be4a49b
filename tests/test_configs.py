"""Every YAML in configs/ loads, the reference names every option with its default, precedence holds,
and an option that is declared is everywhere: a flag, a key, a row of the documentation."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import typer
import yaml

from nanodoc.cli.app import app
from nanodoc.cli.options import default_of, reference, table
from nanodoc.config import OPTIONS, Config, load_config
from nanodoc.errors import UsageError
from nanodoc.options import Option
from nanodoc.supervise.job import Job

CONFIGS = Path(__file__).parent.parent / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_config_loads_and_is_documented(path: Path) -> None:
    load_config(path, {})
    lines = path.read_text().splitlines()
    assert lines[0].startswith("#")
    assert all("#" in line for line in lines if line and not line.startswith("#"))


def test_the_reference_is_the_defaults() -> None:
    assert load_config(CONFIGS / "reference.yaml", {}) == Config()
    keys = {
        key.replace("-", "_") for key in yaml.safe_load((CONFIGS / "reference.yaml").read_text())
    }
    assert keys == {field.name for field in fields(Config)}


def test_the_reference_is_written_from_the_declarations() -> None:
    written = (CONFIGS / "reference.yaml").read_text(encoding="utf-8")
    assert written == reference(), "scripts/reference writes it anew"


def _flags(command: str) -> set[str]:
    """As the command line has them."""
    commands = typer.main.get_command(app).commands
    return {
        "/".join(name for name in (*parameter.opts, *parameter.secondary_opts) if name[:2] == "--")
        for parameter in commands[command].params
    }


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.key)
def test_an_option_is_a_flag_a_key_and_a_row(option: Option) -> None:
    assert option.commands or option.name in ("recipe", "also", "allow"), "mappings are no flags"
    for command in ("run", "replay", "check-grad-graph", "demo"):
        if option.key in ("module", "output-format") and command == "check-grad-graph":
            continue  # its own: the parameters below a module, not frames; tree, json and dot
        assert (option.flag in _flags(command)) == (command in option.commands), command
    assert f"\n{option.key}: " in reference()
    (row,) = (line for line in table().splitlines() if f"| `{option.key}` |" in line)
    for cell in (option.help, default_of(option), *option.choices, *option.commands):
        assert cell in row
    assert not option.help.endswith((".", ":"))


@pytest.mark.parametrize("command", ["run", "replay", "check-grad-graph", "demo"])
def test_flags_that_are_not_given_change_nothing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every option another value than its default, from pyproject.toml, reaches the command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_text("def build(): ...\n")
    torch.save({}, tmp_path / "x.pt")
    (tmp_path / "pyproject.toml").write_text(
        "[tool.nanodoc]\n"
        "steps = 7\ndevice = 'cpu'\nseed = 3\namp = 'bfloat16'\noutput-format = 'json'\n"
        "output = 'r.json'\nsnapshot-dir = 'out'\nfail-on = 'never'\nselect = 'ND3'\n"
        "ignore = ['ND301']\ntrace-steps = [1, 3]\nframes = true\nmax-frames = 5\n"
        "module = 'head'\nabort-after-step = 2\ncheckpoints = false\ncheckpoint-every = 9\n"
        "budget = '2m'\nfix = true\nstats = true\nlog-every = 4\noverfit-batch = true\n"
        "preflight = false\ntensorboard = 'events'\nlive = true\nleak-check = false\n"
        "also = {html = 'r.html'}\nquiet = true\nbrief = true\nverbose = 1\n"
        "in-process = true\ntimeout = '90s'\nallow = ['ND3']\nbaseline = 'b.json'\n"
        "write-baseline = 'c.json'\nwandb = 'p'\nmlflow = 'e'\n"
        "thresholds = { 'dead-units.share' = 0.7 }\nrecipe = { lr = 0.5 }\n"
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    told: list[Config] = []

    def examined(job: Job, live: bool = False) -> None:
        told.append(job.config)
        raise typer.Exit

    module = sys.modules[f"nanodoc.cli.{command.replace('-', '_')}"]
    monkeypatch.setattr(module, "examined", examined)
    target = {"demo": "hot-optimizer", "replay": "x.pt"}.get(command, "x:build")
    app([command, target], standalone_mode=False)
    (config,) = told
    for option in OPTIONS.values():
        value = getattr(config, option.name)
        if command == "check-grad-graph" and option.name == "steps":
            assert value == 1  # of its own default: a look at one step is enough
        else:
            assert value == getattr(load_config(None, {}), option.name) != option.default


def test_flags_win_over_yaml_over_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.nanodoc]\nsteps = 1\nseed = 1\ndevice = 'cpu'\n"
    )
    (tmp_path / "c.yaml").write_text("steps: 2\nseed: 2\namp: off\nselect: [ND3]\n")
    config = load_config(tmp_path / "c.yaml", {"steps": 3, "trace_steps": "3,7"})
    assert (config.steps, config.seed, config.device, config.amp) == (3, 2, "cpu", "off")
    assert config.select == ("ND3",)
    assert config.trace_steps == (3, 7)


def test_the_ci_smoke_check_is_a_few_cpu_steps() -> None:
    config = load_config(CONFIGS / "ci-smoke.yaml", {})
    assert config.device == "cpu"
    assert config.steps is not None
    assert config.steps <= 10
    assert config.output_format == "github"


@pytest.mark.parametrize(
    ("yaml_text", "said"),
    [
        ("device: null", "device is None; it must be a text"),
        ("max-frames: null", "max-frames is None; it must be a whole number of at least 1"),
        ("steps: true", "steps is True; it must be a whole number of at least 1"),
        ("seed: -1", "seed is -1; it must be a whole number of at least 0"),
        ("amp: float8", "amp is 'float8'; it must be one of off, float16, bfloat16"),
        ("timeout: soon", "timeout is 'soon'; it must be a number of seconds, such as 60, 60s"),
        ("live: 1", "live is 1; it must be true or false"),
        ("select: 3", "select is 3; it must be a list of rule codes or names"),
        ("thresholds: [dead-units.share]", "it must be NAME=VALUE with a number"),
        ("thresholds: {dead-unit.share: 1}", "did you mean 'dead-units.share'?"),
    ],
)
def test_a_bad_value_is_told_with_its_key_and_what_it_must_be(
    yaml_text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(yaml_text)
    with pytest.raises(UsageError) as refused:
        load_config(tmp_path / "c.yaml", {}, tmp_path)
    assert said in str(refused.value)


@pytest.mark.parametrize("steps", ["3,x", [-1], {"a": 1}])
def test_bad_step_lists(steps: object) -> None:
    with pytest.raises(UsageError, match="step numbers"):
        load_config(None, {"trace_steps": steps})
