"""One schema for flags, YAML and `[tool.nanodoc]`: defaults < pyproject.toml < YAML < flags."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from nanodoc.artifacts import ARTIFACTS
from nanodoc.bounded_yaml import safe_yaml
from nanodoc.errors import UsageError
from nanodoc.options import BadValue, option, options_of
from nanodoc.rules.catalogue import check_thresholds

_SHOWN = 100  # characters of a value in a message
FORMATS = (
    *("full", "concise", "json", "github", "html"),
    *("sarif", "junit", "markdown", "gitlab"),
)
AMP = ("off", "float16", "bfloat16")

_RUN = ("run",)
_GRAPH = ("run", "check-grad-graph")
_REPLAY = ("run", "replay")
_ALL = ("run", "replay", "check-grad-graph")
_SELDOM = "as often as possible within 1 % of the run time"
_WHAT, _WATCH, _TRY = "What to run", "What to watch", "What to try"
_OUTPUT, _ACCEPT = "Output", "What to accept"
PANELS = (_WHAT, _WATCH, _TRY, _OUTPUT, _ACCEPT)
"""The headings of --help, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything a run can be told. In YAML the keys are written with `-` or `_` alike."""

    steps: int | None = option(
        None,
        "Number of training steps; a script is ended after them",
        _GRAPH,
        least=1,
        shown_default="recipes: max_steps or 100; scripts: until they end",
        panel=_WHAT,
    )
    device: str = option(
        "auto",
        "Device to train on, recipes only: auto, cpu, cuda, cuda:1, mps, xpu, …",
        _ALL,
        shown_default="auto, the accelerator that torch sees",
        panel=_WHAT,
        metavar="DEVICE",
    )
    seed: int | None = option(
        None,
        "Seed Python, NumPy and torch before the recipe is built, recipes only",
        _GRAPH,
        most=2**64 - 1,
        panel=_WHAT,
    )
    amp: str | None = option(
        None,
        "Autocast's dtype, recipes only",
        _ALL,
        choices=AMP,
        shown_default="as the recipe says",
        panel=_WHAT,
        metavar="DTYPE",
    )
    output_format: str = option(
        "full",
        "Form of the report",
        (*_REPLAY, "demo", "view"),
        choices=FORMATS,
        shown_default="by the suffix of --output, else full",
        panel=_OUTPUT,
        metavar="FORMAT",
    )
    output: str | None = option(
        None,
        "Write the report to this file instead of the terminal: report.html, .json, .sarif, .md or "
        ".xml (JUnit). FORMAT=FILE adds another report; may be repeated",
        (*_ALL, "demo", "view"),
        path=True,
        repeated=True,
        panel=_OUTPUT,
        metavar="[FORMAT=]FILE",
    )
    also: Mapping[str, str] = option(
        dict, "Further reports: their files, by format", (), choices=FORMATS
    )
    snapshot_dir: str | None = option(
        None,
        "Folder for snapshots, traces and history.jsonl",
        (*_REPLAY, "demo"),
        path=True,
        shown_default=ARTIFACTS,
        panel=_OUTPUT,
        metavar="FOLDER",
    )
    fail_on: str = option(
        "critical",
        "Lowest severity that makes the exit code 1",
        _ALL,
        choices=("critical", "warning", "never"),
        panel=_ACCEPT,
        metavar="SEVERITY",
    )
    select: tuple[str, ...] = option(
        (),
        "Only these rules: codes, prefixes or names, separated by commas",
        _ALL,
        panel=_WATCH,
    )
    ignore: tuple[str, ...] = option((), "Not these rules", _ALL, panel=_ACCEPT)
    allow: tuple[Mapping[str, str], ...] = option(
        (),
        "Findings that are accepted: rules, or mappings such as {rule: ND603, file: model.py, "
        "reason: ...} with the keys rule, file, module, parameter (patterns) and reason",
        (),
    )
    baseline: str | None = option(
        None,
        "File of accepted findings, written by --write-baseline; off for none",
        _GRAPH,
        path=True,
        shown_default="nanodoc-baseline.json in the working folder, if there is one",
        panel=_ACCEPT,
        metavar="FILE",
    )
    write_baseline: str | None = option(
        None,
        "Accept what this run finds: write it to this file as the baseline",
        _GRAPH,
        path=True,
        panel=_ACCEPT,
        metavar="FILE",
    )
    trace_steps: tuple[int, ...] = option(
        (),
        "Write the ops of these steps, such as 3,7 (counted from 0), to trace-step<N>.jsonl; with "
        "--frames, print their frames instead",
        _RUN,
        panel=_WATCH,
    )
    frames: bool = option(
        False,
        "Print the range of every module's weights, inputs and outputs: of the --trace-steps, else "
        "of the step that fails or the last",
        _RUN,
        panel=_WATCH,
    )
    max_frames: int = option(
        100,
        "Print at most this many frames of one step, those before the first non-finite output",
        _RUN,
        least=1,
        panel=_WATCH,
    )
    module: str | None = option(
        None,
        "Frames only of this module and those below it",
        _RUN,
        panel=_WATCH,
        metavar="PREFIX",
    )
    abort_after_step: int | None = option(None, "End the run after this step", _RUN, panel=_WHAT)
    checkpoints: bool = option(
        True,
        "Keep copies of earlier weights in host memory, for experiments on how a run came to fail",
        _RUN,
        flag="--checkpoints/--no-checkpoints",
        panel=_TRY,
    )
    checkpoint_every: int | None = option(
        None,
        "Steps between two copies of the weights",
        _RUN,
        least=1,
        shown_default=_SELDOM,
        panel=_TRY,
    )
    budget: float = option(
        60.0,
        "Time for all that is run again after the last step, such as 60s or 2m",
        _REPLAY,
        panel=_TRY,
    )
    fix: bool = option(
        False,
        "Write verified one-line fixes to nanodoc.patch, for `git apply`",
        _REPLAY,
        panel=_TRY,
    )
    stats: bool = option(
        False,
        "Print a table of every parameter (gradient, update ratio) and every layer's output",
        _RUN,
        panel=_OUTPUT,
    )
    log_every: int | None = option(
        None,
        "Steps between two detailed measurements",
        _RUN,
        least=1,
        shown_default=_SELDOM,
        panel=_WATCH,
    )
    overfit_batch: bool = option(
        False,
        "Train on the first batch alone, then with its inputs zeroed; recipes only",
        _RUN,
        panel=_TRY,
    )
    preflight: bool | None = option(
        None,
        "Run one step only, and list what was checked: batch, ids, labels, modes, loss, gradients, "
        "optimizer",
        _RUN,
        flag="--preflight/--no-preflight",
        shown_default="only indices and labels of the first step, as it runs",
        panel=_TRY,
    )
    tensorboard: str | None = option(
        None,
        "Folder for TensorBoard's event files (extra: tensorboard)",
        _RUN,
        path=True,
        panel=_OUTPUT,
        metavar="FOLDER",
    )
    wandb: str | None = option(
        None,
        "Log history and findings to this project of Weights & Biases, offline unless WANDB_MODE "
        "says otherwise (extra: wandb)",
        _RUN,
        panel=_OUTPUT,
        metavar="PROJECT",
    )
    mlflow: str | None = option(
        None,
        "Log history and findings to this MLflow experiment, at MLFLOW_TRACKING_URI (extra: "
        "mlflow)",
        _RUN,
        panel=_OUTPUT,
        metavar="EXPERIMENT",
    )
    live: bool = option(
        False, "Show the vital signs in the terminal during the run", _RUN, panel=_OUTPUT
    )
    leak_check: bool = option(
        True,
        "Try at the end whether samples of a batch influence each other (ND513)",
        _RUN,
        flag="--leak-check/--no-leak-check",
        panel=_TRY,
    )
    quiet: bool = option(False, "No progress on stderr", _REPLAY, short="-q", panel=_OUTPUT)
    brief: bool = option(False, "One line per finding, no progress", _REPLAY, panel=_OUTPUT)
    verbose: int = option(
        0,
        "More about each finding: -v the evidence, every experiment and fix; -vv also frames and "
        "everything that followed",
        (*_REPLAY, "check-grad-graph", "demo", "view"),
        most=9,
        short="-v",
        counted=True,
        panel=_OUTPUT,
    )
    in_process: bool = option(
        False,
        "Run the training in nanodoc's own process, for debuggers; a crash then leaves no report",
        _ALL,
        panel=_WHAT,
    )
    timeout: float | None = option(
        None,
        "The training counts as hung if no step ends and no new part of the run begins for this "
        "long, such as 90s or 5m",
        _ALL,
        above_zero=True,
        shown_default="no limit",
        panel=_WHAT,
    )
    thresholds: Mapping[str, float] = option(
        dict,
        "Change a number that a rule compares with, such as dead-units.share=0.7; may be repeated; "
        "`nanodoc explain CODE` lists them",
        _ALL,
        flag="--threshold",
        panel=_WATCH,
    )
    recipe: Mapping[str, Any] = option(
        dict, "Given to build(config), when it takes an argument", ()
    )

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OPTIONS}


OPTIONS = options_of(Config)
"""Every option, by its field."""


def artifact_folder(config: Config) -> Path:
    """Where snapshots, traces and the history go."""
    return Path(ARTIFACTS if config.snapshot_dir is None else config.snapshot_dir)


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
        tools = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except (ValueError, OSError) as error:  # TOMLDecodeError and what numbers and dates raise
        raise UsageError(f"{path.name}: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{path.name}: it is nested too deeply") from error
    table = tools.get("nanodoc", {}) if isinstance(tools, Mapping) else {}
    if not isinstance(table, Mapping):
        raise UsageError(f"{path.name}: [tool.nanodoc] must be a table")
    return table


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        content = safe_yaml(path.read_text(encoding="utf-8"))
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
    except RecursionError as error:
        raise UsageError(f"{path}: it is nested too deeply") from error
    except ValueError as error:  # a date or a number that is none
        raise UsageError(f"bad YAML in {path}: {' '.join(str(error).split())[:200]}") from error
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
        name = str(raw).replace("-", "_")
        if name not in OPTIONS:
            near = get_close_matches(name, OPTIONS, 1, cutoff=0.5)
            meant = f"; did you mean {near[0].replace('_', '-')!r}?" if near else ""
            raise UsageError(f"{source}: unknown key {_shown(raw)}{meant}")
        declared = OPTIONS[name]
        try:
            checked[name] = declared.read(value)
        except BadValue as wanted:
            raise UsageError(
                f"{source}: {declared.key} is {_shown(value)}; it must be {wanted}"
            ) from wanted
        if name == "thresholds":
            check_thresholds(checked[name], source)
    return replace(config, **checked)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        text = "a very large number"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
