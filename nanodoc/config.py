"""One schema for flags, YAML and `[tool.nanodoc]`: defaults < pyproject.toml < YAML < flags."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from nanodoc.errors import UsageError
from nanodoc.rules.catalogue import check_thresholds

AMP = ("off", "float16", "bfloat16")
FORMATS = ("full", "concise", "json", "github")
FAIL_ON = ("critical", "warning", "never")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything a run can be told. In YAML the keys are written with `-` or `_` alike."""

    steps: int | None = None
    """Training steps; None: the recipe's max_steps, else 100."""
    device: str = "auto"
    """"auto", "cpu", or a device of torch's: "cuda", "cuda:1", "mps", "xpu"."""
    seed: int | None = None
    """Seeds Python, NumPy and torch before the recipe is built; None leaves them alone."""
    amp: str | None = None
    """"off", "float16" or "bfloat16"; None: as the recipe says."""
    output_format: str = "full"
    output: str | None = None
    """File for the report; None: stdout."""
    snapshot_dir: str | None = None
    """Folder for snapshots, traces and the history; None: beside --output, else the working
    folder."""
    fail_on: str = "critical"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    trace_steps: tuple[int, ...] = ()
    frames: bool = False
    """Whether to print the range of every module's weights, inputs and outputs."""
    max_frames: int = 100
    """Frames printed of one step, those before the first non-finite output."""
    module: str | None = None
    """Frames only of this module and those below it."""
    abort_after_step: int | None = None
    """End the run after this step."""
    checkpoints: bool = True
    """Whether to keep copies of earlier weights in host memory, for experiments on how a run came
    to fail."""
    checkpoint_every: int | None = None
    """Steps between two copies; None: as often as costs less than a hundredth of the time."""
    budget: float = 60.0
    """Seconds that experiments and fixes to be tried may take together."""
    fix: bool = False
    """Whether to write the verified one-line fixes as a .patch file."""
    stats: bool = False
    """Whether to print the tables of parameters and layers."""
    log_every: int | None = None
    """Look at every so many steps more closely; None: as often as costs less than a hundredth of
    the time."""
    overfit_batch: bool = False
    """Train on the first batch alone, and on the same with its inputs zeroed."""
    preflight: bool | None = None
    """True: run one step only, and list what was checked. None: check the first step's indices and
    labels as it runs. False: don't."""
    tensorboard: str | None = None
    """Folder for TensorBoard's event files."""
    live: bool = False
    """Whether to show the vital signs on the terminal while the run goes on."""
    leak_check: bool = True
    """Whether to try, when the run is over, if samples of a batch influence each other (ND513)."""
    quiet: bool = False
    in_process: bool = False
    """Run the training in nanodoc's own process, as a debugger needs it; then nothing outlives a
    crash."""
    timeout: float | None = None
    """Seconds without a sign of life (no step finished, no phase begun) after which the training
    counts as hung; None: no limit."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Numbers that rules compare with, by name; each rule declares its own."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Given to `build(config)`, when it takes an argument."""

    def as_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def artifact_folder(config: Config) -> Path:
    """Where snapshots, traces and the history go."""
    if config.snapshot_dir is not None:
        return Path(config.snapshot_dir)
    return Path(config.output).parent if config.output is not None else Path(".")


_LEAST = {
    "steps": 1,
    "seed": 0,
    "max_frames": 1,
    "checkpoint_every": 1,
    "abort_after_step": 0,
    "log_every": 1,
}
_KEYS = tuple(f.name for f in fields(Config))


def load_config(file: Path | None, flags: Mapping[str, Any], folder: Path | None = None) -> Config:
    """The configuration of one command. `flags` holds only what the user gave. Raises
    `UsageError`."""
    config = Config()
    pyproject = (folder or Path.cwd()) / "pyproject.toml"
    if pyproject.is_file():
        config = _merge(config, _read_pyproject(pyproject), f"{pyproject.name} [tool.nanodoc]")
    if file is not None:
        config = _merge(config, _read_yaml(file), str(file))
    return _merge(config, flags, "the command line")


def _read_pyproject(path: Path) -> Mapping[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("nanodoc", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path.name}: {error}") from error
    if not isinstance(table, Mapping):
        raise UsageError(f"{path.name}: [tool.nanodoc] must be a table")
    return table


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"no such config file: {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the config {path}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise UsageError(
            f"bad YAML in {path}{where}: {getattr(error, 'problem', None) or error}"
        ) from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise UsageError(
            f"{path} must hold a mapping of options, such as `steps: 5`; it holds a "
            f"{type(content).__name__}"
        )
    return content


def _merge(config: Config, values: Mapping[str, Any], source: str) -> Config:
    checked: dict[str, Any] = {}
    for raw, value in values.items():
        key = str(raw).replace("-", "_")
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, 1, cutoff=0)[0].replace("_", "-")
            raise UsageError(f"{source}: unknown key {str(raw)!r}; did you mean {near!r}?")
        checked[key] = _checked(key, value, source)
    return replace(config, **checked)


def _checked(key: str, value: Any, source: str) -> Any:
    name = key.replace("_", "-")

    def refuse(wanted: str) -> UsageError:
        return UsageError(f"{source}: {name} is {value!r}; it must be {wanted}")

    if key in ("output_format", "fail_on", "amp"):
        choices = {"output_format": FORMATS, "fail_on": FAIL_ON, "amp": AMP}[key]
        if key == "amp" and value in (None, False):  # YAML reads a bare `off` as false
            return None if value is None else "off"
        if value not in choices:
            raise refuse("one of " + ", ".join(choices))
    elif key in _LEAST:
        if (value is not None or key == "max_frames") and (
            isinstance(value, bool) or not isinstance(value, int) or value < _LEAST[key]
        ):
            raise refuse(f"a whole number of at least {_LEAST[key]}")
    elif key in ("select", "ignore"):
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise refuse("a list of rule codes or names, such as ND301, ND2 or log-of-zero")
        return tuple(item.strip() for item in items if item.strip())
    elif key == "trace_steps":
        return _step_list(value, refuse)
    elif key == "budget" or (key == "timeout" and value is not None):
        return _seconds(value, refuse)
    elif key == "preflight" and value is None:
        return None
    elif key in (
        "quiet",
        "leak_check",
        "frames",
        "checkpoints",
        "fix",
        "stats",
        "overfit_batch",
        "preflight",
        "live",
        "in_process",
    ):
        if not isinstance(value, bool):
            raise refuse("true or false")
    elif key == "thresholds":
        return _thresholds(value, source, refuse)
    elif key == "recipe":
        if not isinstance(value, Mapping):
            raise refuse("a mapping that build(config) is given")
    elif value is not None and not isinstance(value, (str, Path)):
        raise refuse("a text")
    return str(value) if isinstance(value, Path) else value


def _seconds(value: Any, refuse: Any) -> float:
    """60, "60", "60s" and "2m" as seconds."""
    match = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m)?\s*", str(value))
        if not isinstance(value, bool)
        else None
    )
    if match is None:
        raise refuse("a number of seconds, such as 60, 60s or 2m")
    return float(match[1]) * (60.0 if match[2] == "m" else 1.0)


def _thresholds(value: Any, source: str, refuse: Any) -> dict[str, float]:
    """A mapping of names to numbers, or a list of NAME=VALUE."""
    if isinstance(value, (list, tuple)):
        pairs = [str(item).partition("=") for item in value]
        value = {name.strip(): number.strip() for name, _, number in pairs}
    if not isinstance(value, Mapping):
        raise refuse("a mapping of names to numbers, such as dead-units.share: 0.7")
    try:
        found = {str(name): float(number) for name, number in value.items()}
    except (TypeError, ValueError) as error:
        raise refuse("NAME=VALUE with a number, such as dead-units.share=0.7") from error
    check_thresholds(found, source)
    return found


def _step_list(value: Any, refuse: Any) -> tuple[int, ...]:
    items = (
        value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    )
    try:
        steps = tuple(int(item) for item in items)
    except (TypeError, ValueError) as error:
        raise refuse("a list of step numbers, such as 3,7") from error
    if any(step < 0 for step in steps):
        raise refuse("a list of step numbers counted from 0")
    return steps
