"""`nanodoc run FILE.py:NAME`: instrumented steps, then a ranked diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nanodoc.cli.common import deliver, examined, given, payload_on_stdout
from nanodoc.config import load_config
from nanodoc.rules.catalogue import check_codes
from nanodoc.supervise.job import Job

Steps = Annotated[
    int | None,
    typer.Option("--steps", help="Training steps (default: the recipe's max_steps, else 100)."),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="auto, cpu, cuda, cuda:1, mps, xpu, … (default: auto, the accelerator that torch "
        "sees).",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Seed Python, NumPy and torch before the recipe is built."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help="YAML file with any of these options, and `recipe:` for build(config)."
    ),
]
Amp = Annotated[
    str | None,
    typer.Option("--amp", help="off, float16 or bfloat16 (default: as the recipe says)."),
]
Format = Annotated[
    str | None,
    typer.Option("--output-format", help="full, concise, json or github (default: full)."),
]
Output = Annotated[
    Path | None, typer.Option("--output", help="Write the report to this file instead of stdout.")
]
SnapshotDir = Annotated[
    Path | None,
    typer.Option("--snapshot-dir", help="Folder for snapshots, traces and history.jsonl."),
]
FailOn = Annotated[
    str | None,
    typer.Option("--fail-on", help="Exit 1 at: critical, warning or never (default: critical)."),
]
Select = Annotated[
    str | None,
    typer.Option(
        "--select", help="Only these rules: codes, prefixes or names, separated by commas."
    ),
]
Ignore = Annotated[str | None, typer.Option("--ignore", help="Not these rules.")]
TraceSteps = Annotated[
    str | None,
    typer.Option(
        "--trace-steps",
        help="Write the ops of these steps, such as 3,7, to trace-step<N>.jsonl; with --frames, "
        "print their frames instead.",
    ),
]
Frames = Annotated[
    bool,
    typer.Option("--frames", help="Print the range of every module's weights, inputs and outputs."),
]
MaxFrames = Annotated[
    int | None, typer.Option("--max-frames", help="Most frames printed of one step (default: 100).")
]
Module = Annotated[
    str | None, typer.Option("--module", help="Frames only of this module and those below it.")
]
AbortAfterStep = Annotated[
    int | None, typer.Option("--abort-after-step", help="End the run after this step.")
]
LeakCheck = Annotated[
    bool | None,
    typer.Option(
        "--leak-check/--no-leak-check",
        help="Try at the end whether samples of a batch influence each other (default: yes).",
    ),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-every",
        help="Steps between copies of the weights for experiments (default: as often as costs "
        "under 1 % of the time).",
    ),
]
Checkpoints = Annotated[
    bool | None,
    typer.Option(
        "--checkpoints/--no-checkpoints",
        help="Keep copies of earlier weights in memory (default: yes).",
    ),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="Time for experiments and for trying fixes, such as 60s or 2m (default: 60s).",
    ),
]
Stats = Annotated[
    bool,
    typer.Option(
        "--stats",
        help="Print a table of every parameter (gradient, update ratio) and every layer's output.",
    ),
]
LogEvery = Annotated[
    int | None,
    typer.Option(
        "--log-every",
        help="Look at every so many steps more closely (default: as often as costs under 1 % of "
        "the time).",
    ),
]
OverfitBatch = Annotated[
    bool,
    typer.Option(
        "--overfit-batch",
        help="Train on the first batch alone, and on the same with its inputs zeroed.",
    ),
]
Preflight = Annotated[
    bool | None,
    typer.Option(
        "--preflight/--no-preflight",
        help="One step only, and a list of checks: batch, ids, labels, modes, loss, gradients, "
        "optimizer (default: indices and labels of the first step).",
    ),
]
Tensorboard = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard", help="Folder for TensorBoard's event files (extra: tensorboard)."
    ),
]
ThresholdOption = Annotated[
    list[str] | None,
    typer.Option(
        "--threshold", help="NAME=VALUE of a number that a rule compares with; may be given again."
    ),
]
Live = Annotated[
    bool, typer.Option("--live", help="Show the vital signs on the terminal while the run goes on.")
]
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        help="Time without a sign of life, such as 90s or 5m, after which the training counts as "
        "hung (default: none).",
    ),
]
InProcess = Annotated[
    bool,
    typer.Option(
        "--in-process",
        help="Run the training in nanodoc's own process, for debuggers; then no report outlives a "
        "crash.",
    ),
]
WriteFix = Annotated[
    bool,
    typer.Option("--fix", help="Write verified one-line fixes to nanodoc.patch, for `git apply`."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]


def run(
    entrypoint: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="The function that returns what to train.")
    ],
    steps: Steps = None,
    device: Device = None,
    seed: Seed = None,
    config: ConfigFile = None,
    amp: Amp = None,
    output_format: Format = None,
    output: Output = None,
    snapshot_dir: SnapshotDir = None,
    fail_on: FailOn = None,
    select: Select = None,
    ignore: Ignore = None,
    trace_steps: TraceSteps = None,
    frames: Frames = False,
    max_frames: MaxFrames = None,
    module: Module = None,
    abort_after_step: AbortAfterStep = None,
    leak_check: LeakCheck = None,
    checkpoint_every: CheckpointEvery = None,
    checkpoints: Checkpoints = None,
    budget: BudgetOption = None,
    fix: WriteFix = False,
    stats: Stats = False,
    log_every: LogEvery = None,
    overfit_batch: OverfitBatch = False,
    preflight: Preflight = None,
    tensorboard: Tensorboard = None,
    live: Live = False,
    timeout: Timeout = None,
    in_process: InProcess = False,
    threshold: ThresholdOption = None,
    quiet: Quiet = False,
) -> None:
    """Run some training steps under watch and print a ranked diagnosis."""
    flags = given(
        steps=steps,
        device=device,
        seed=seed,
        amp=amp,
        output_format=output_format,
        output=output,
        snapshot_dir=snapshot_dir,
        fail_on=fail_on,
        select=select,
        ignore=ignore,
        trace_steps=trace_steps,
        frames=frames or None,
        max_frames=max_frames,
        module=module,
        abort_after_step=abort_after_step,
        leak_check=leak_check,
        checkpoint_every=checkpoint_every,
        checkpoints=checkpoints,
        budget=budget,
        fix=fix or None,
        stats=stats or None,
        log_every=log_every,
        overfit_batch=overfit_batch or None,
        preflight=preflight,
        tensorboard=tensorboard,
        live=live or None,
        timeout=timeout,
        in_process=in_process or None,
        thresholds=threshold or None,
        quiet=quiet or None,
    )
    settings = load_config(config, flags)
    check_codes(settings.select + settings.ignore)
    with payload_on_stdout() as stdout:
        deliver(
            examined(Job(command="run", target=entrypoint, config=settings), settings.live),
            settings,
            stdout,
        )
