"""One schema for flags, YAML and `[tool.nanodoc]`: defaults < pyproject.toml < YAML < flags."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from nanodoc.errors import UsageError
from nanodoc.options import BadValue, option, options_of
from nanodoc.rules.catalogue import check_thresholds

_LARGEST = 1 << 20  # characters
_MOST_VALUES = 10_000
_DEEPEST = 50
_ENDS = 400  # bytes
_REPORTS = (b"nanodoc ", b"nanodoc: ", b"::", b"digraph nanodoc ")
"""How a report begins; a concise one has its verdict at the end, JSON its version near the head."""
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
_SELDOM = "as often as costs under 1 % of the time"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything a run can be told. In YAML the keys are written with `-` or `_` alike."""

    steps: int | None = option(
        None,
        "Training steps",
        _GRAPH,
        least=1,
        shown_default="the recipe's max_steps, else 100",
    )
    device: str = option(
        "auto",
        "Device to train on: auto, cpu, cuda, cuda:1, mps, xpu, …",
        _ALL,
        shown_default="auto, the accelerator that torch sees",
    )
    seed: int | None = option(
        None,
        "Seed Python, NumPy and torch before the recipe is built",
        _GRAPH,
        most=2**64 - 1,
    )
    amp: str | None = option(
        None, "Autocast's dtype", _ALL, choices=AMP, shown_default="as the recipe says"
    )
    output_format: str = option(
        "full",
        "Form of the report",
        (*_REPLAY, "demo", "view"),
        choices=FORMATS,
    )
    output: str | None = option(
        None,
        "Write the report to this file instead of stdout; FORMAT=FILE writes a further one, as "
        "often as it is given",
        (*_ALL, "demo", "view"),
        path=True,
        repeated=True,
    )
    also: Mapping[str, str] = option(
        dict, "Further reports: their files, by format", (), choices=FORMATS
    )
    snapshot_dir: str | None = option(
        None,
        "Folder for snapshots, traces and history.jsonl",
        ("run", "demo"),
        path=True,
        shown_default="beside --output, else the working folder",
    )
    fail_on: str = option(
        "critical",
        "Severity from which on the exit code is 1",
        _ALL,
        choices=("critical", "warning", "never"),
    )
    select: tuple[str, ...] = option(
        (), "Only these rules: codes, prefixes or names, separated by commas", _ALL
    )
    ignore: tuple[str, ...] = option((), "Not these rules", _ALL)
    allow: tuple[Mapping[str, str], ...] = option(
        (),
        "Findings that are accepted: rules, or mappings such as {rule: ND603, file: model.py, "
        "reason: ...} with the keys rule, file, module, parameter (patterns) and reason",
        (),
    )
    baseline: str | None = option(
        None,
        "File of findings that are accepted, written by --write-baseline; off for none",
        _GRAPH,
        path=True,
        shown_default="nanodoc-baseline.json, where the working folder has one",
    )
    write_baseline: str | None = option(
        None, "Accept what this run finds: write it to this file as the baseline", _GRAPH, path=True
    )
    trace_steps: tuple[int, ...] = option(
        (),
        "Write the ops of these steps, such as 3,7, counted from 0, to trace-step<N>.jsonl; with "
        "--frames, print their frames instead",
        _RUN,
    )
    frames: bool = option(
        False,
        "Print the range of every module's weights, inputs and outputs: of the --trace-steps, else "
        "of the step that fails or the last",
        _RUN,
    )
    max_frames: int = option(
        100,
        "Most frames printed of one step, those before the first non-finite output",
        _RUN,
        least=1,
    )
    module: str | None = option(None, "Frames only of this module and those below it", _RUN)
    abort_after_step: int | None = option(None, "End the run after this step", _RUN)
    checkpoints: bool = option(
        True,
        "Keep copies of earlier weights in host memory, for experiments on how a run came to fail",
        _RUN,
        flag="--checkpoints/--no-checkpoints",
    )
    checkpoint_every: int | None = option(
        None, "Steps between two copies of the weights", _RUN, least=1, shown_default=_SELDOM
    )
    budget: float = option(
        60.0, "Time for experiments and for trying fixes, such as 60s or 2m", _REPLAY
    )
    fix: bool = option(
        False, "Write verified one-line fixes to nanodoc.patch, for `git apply`", _REPLAY
    )
    stats: bool = option(
        False,
        "Print a table of every parameter (gradient, update ratio) and every layer's output",
        _RUN,
    )
    log_every: int | None = option(
        None, "Look at every so many steps more closely", _RUN, least=1, shown_default=_SELDOM
    )
    overfit_batch: bool = option(
        False, "Train on the first batch alone, and on the same with its inputs zeroed", _RUN
    )
    preflight: bool | None = option(
        None,
        "Run one step only, and list what was checked: batch, ids, labels, modes, loss, gradients, "
        "optimizer",
        _RUN,
        flag="--preflight/--no-preflight",
        shown_default="only indices and labels of the first step, as it runs",
    )
    tensorboard: str | None = option(
        None, "Folder for TensorBoard's event files (extra: tensorboard)", _RUN, path=True
    )
    wandb: str | None = option(
        None,
        "Log history and findings to this project of Weights & Biases, offline unless WANDB_MODE "
        "says otherwise (extra: wandb)",
        _RUN,
    )
    mlflow: str | None = option(
        None,
        "Log history and findings to this experiment of MLflow, where MLFLOW_TRACKING_URI says "
        "(extra: mlflow)",
        _RUN,
    )
    live: bool = option(False, "Show the vital signs on the terminal while the run goes on", _RUN)
    leak_check: bool = option(
        True,
        "Try at the end whether samples of a batch influence each other (ND513)",
        _RUN,
        flag="--leak-check/--no-leak-check",
    )
    quiet: bool = option(False, "No progress on stderr", _REPLAY)
    brief: bool = option(False, "One line a finding, no progress", _REPLAY, short="-q")
    verbose: int = option(
        0,
        "More of each finding: -v the evidence, every experiment and fix, -vv frames and the whole "
        "spread",
        (*_REPLAY, "check-grad-graph", "demo", "view"),
        most=9,
        short="-v",
        counted=True,
    )
    in_process: bool = option(
        False,
        "Run the training in nanodoc's own process, for debuggers; then no report outlives a crash",
        _ALL,
    )
    timeout: float | None = option(
        None,
        "Time without a sign of life (no step finished, no phase begun), such as 90s or 5m, after "
        "which the training counts as hung",
        _ALL,
        above_zero=True,
        shown_default="no limit",
    )
    thresholds: Mapping[str, float] = option(
        dict,
        "NAME=VALUE of a number that a rule compares with, such as dead-units.share=0.7; may be "
        "given again; `nanodoc explain CODE` lists them",
        _ALL,
        flag="--threshold",
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
    if config.snapshot_dir is not None:
        return Path(config.snapshot_dir)
    return Path(config.output).parent if config.output is not None else Path(".")


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


_MARKS = (
    *(b'<meta name="generator" content="nanodoc">', b'<testsuites name="nanodoc"'),
    *(b'"name": "nanodoc"', b"<!-- nanodoc report -->", b'"check_name": "nanodoc '),
)


def check_output(config: Config) -> None:
    """Raises `UsageError` where the report would take the place of a file that is no report."""
    for file in (config.output, *config.also.values()):
        if file is not None:
            _check_replaced(Path(file))


def _check_replaced(path: Path) -> None:
    try:
        if not path.is_file() or not path.stat().st_size:
            return
        with path.open("rb") as file:
            head = file.read(_ENDS)
            file.seek(-min(_ENDS, path.stat().st_size), os.SEEK_END)
            tail = file.read(_ENDS)
    except OSError:  # what is wrong with it is told when the report is written
        return
    verdict = head.startswith(b"verdict: ") or b"\nverdict: " in tail
    verdict = verdict or head == b"[]\n" or any(mark in head for mark in _MARKS)
    if not verdict and not head.startswith(_REPORTS) and b'"nanodoc":' not in head:
        raise UsageError(
            f"--output {path}: this file is there and is no report of nanodoc's; it stays as it "
            "is, choose another name"
        )


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
        content = _safe_yaml(path.read_text(encoding="utf-8"))
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


def _safe_yaml(text: str) -> Any:
    """As yaml.safe_load, of files in which few aliases do not stand for very many values. Raises
    `ValueError` besides what that raises."""
    if len(text) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST} characters")
    sizes: dict[int, int] = {}
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None and _size(root, sizes, 0) > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES} values, those behind aliases counted")
    return yaml.safe_load(text)


def _size(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """How many values a node stands for. Raises `ValueError` where it holds itself, or deeply."""
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} deep")
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise ValueError("a value holds itself")
        return sizes[id(node)]
    sizes[id(node)] = 0
    size = 1
    if isinstance(node, yaml.SequenceNode):
        size += sum(_size(inner, sizes, depth + 1) for inner in node.value)
    elif isinstance(node, yaml.MappingNode):
        size += sum(_size(part, sizes, depth + 1) for pair in node.value for part in pair)
    sizes[id(node)] = size
    return size


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
