"""Every YAML in configs/ loads, the reference names every option with its default, and precedence
holds."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from nanodoc.config import Config, load_config
from nanodoc.errors import UsageError

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


@pytest.mark.parametrize("steps", ["3,x", [-1], {"a": 1}])
def test_bad_step_lists(steps: object) -> None:
    with pytest.raises(UsageError, match="step numbers"):
        load_config(None, {"trace_steps": steps})
