"""`nanodoc replay SNAPSHOT`: the tripped step again, under the tracer."""

from __future__ import annotations

import os
import sys
import zipfile
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from nanodoc.cli.common import deliver, examined, payload_on_stdout
from nanodoc.cli.options import configured, settings_of
from nanodoc.errors import UsageError
from nanodoc.supervise.job import Job

Snapshot = Annotated[
    Path,
    typer.Argument(
        help="A nanodoc-step<N>.pt, the folder of a sharded step, or a bare {'x', 'y', 'state'} "
        "file."
    ),
]
Recipe = Annotated[
    str | None,
    typer.Option(
        "--entrypoint",
        metavar="FILE.py:NAME",
        help="The recipe, if not the one the snapshot names.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype", help="Everything in float64, float32, bfloat16 or float16, without autocast."
    ),
]
NoAmp = Annotated[
    bool, typer.Option("--no-amp", help="Without autocast and GradScaler, as --amp off.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=NUMBER",
        help="optimizer.lr=1e-4, clip_grad_norm=1 or model.MODULE.ATTRIBUTE=…; may be repeated.",
    ),
]
Samples = Annotated[
    str | None, typer.Option("--samples", help="Only these samples of the batch, such as 3,17.")
]
Ops = Annotated[bool, typer.Option("--ops", help="A table of the ops between cause and symptom.")]
Experiment = Annotated[
    str | None,
    typer.Option("--experiment", help="Only this experiment, such as float64 or other-batch."),
]
Minimise = Annotated[
    bool,
    typer.Option(
        "--minimise",
        help="Find the smallest part of the batch that fails, and write it to --output "
        "(default: …-min.pt).",
    ),
]
Debug = Annotated[
    bool,
    typer.Option("--pdb", help="Stop in your own frame where the first non-finite value is made."),
]
Nproc = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        min=1,
        metavar="N",
        help="Run a sharded step by as many processes as it had ranks, together (default: the part "
        "of the rank that was sick, by one process).",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        help="Write the report to this file instead of stdout; with --minimise, the snapshot.",
    ),
]


@configured("replay")
def replay(
    snapshot: Snapshot,
    entrypoint: Recipe = None,
    dtype: Dtype = None,
    no_amp: NoAmp = False,
    set_: Set = None,
    samples: Samples = None,
    ops: Ops = False,
    experiment: Experiment = None,
    minimise: Minimise = False,
    debug: Debug = False,
    nproc: Nproc = None,
    output: Output = None,
    **flags: Any,
) -> None:
    """Re-run a snapshot's step, changed as you like."""
    _check(snapshot)
    if no_amp:
        if flags["amp"] not in (None, "off"):
            raise UsageError(f"--no-amp and --amp {flags['amp']} contradict each other")
        flags["amp"] = "off"
    settings = settings_of({**flags, "output": output})
    minimal = output or snapshot.with_name(f"{snapshot.stem}-min.pt") if minimise else None
    if minimal is not None:
        settings = replace(settings, output=None)
    changes = {
        "dtype": dtype,
        "settings": tuple(set_ or ()),
        "samples": _rows(samples),
        "ops": ops,
        "experiment": experiment,
        "minimal": str(minimal) if minimal is not None else None,
        "debug": debug,
    }
    together = _together(snapshot, nproc)
    if together and any(changes.values()):
        raise UsageError(
            "all ranks together run the step as it was: leave --nproc out, and a launcher, which "
            "gives the part of one rank with every option"
        )
    if together and nproc is not None and "RANK" not in os.environ:
        from nanodoc.net.local import run_ranks

        raise typer.Exit(run_ranks(nproc, sys.argv[1:]))
    with payload_on_stdout() as stdout:
        options = {**changes, "entrypoint": entrypoint, "together": together}
        # a debugger needs the terminal
        settings = replace(
            settings, in_process=settings.in_process or debug, quiet=settings.quiet or debug
        )
        deliver(
            examined(Job(command="replay", target=str(snapshot), config=settings, options=options)),
            settings,
            stdout,
        )


def _together(snapshot: Path, nproc: int | None) -> bool:
    """Whether all ranks of a sharded step run it, each in a process of its own: started here, or by
    a launcher. Raises `UsageError`."""
    from nanodoc.net.launch import read_launch
    from nanodoc.replay.shared_index import read_index

    if not snapshot.is_dir():
        if nproc is not None:
            raise UsageError("--nproc is only for the folder of a sharded step; leave it out")
        return False
    launch = read_launch(os.environ) if "RANK" in os.environ else None
    if nproc is None and (launch is None or launch.world_size == 1):
        return False
    wanted = read_index(snapshot).ranks
    if nproc not in (None, wanted):
        raise UsageError(
            f"{snapshot} is a step of {wanted} ranks: --nproc {wanted}, or leave it out to replay "
            "the part of one of them"
        )
    if launch is not None and launch.world_size != wanted:
        raise UsageError(
            f"{snapshot} is a step of {wanted} ranks, and WORLD_SIZE={launch.world_size} is set: "
            f"start {wanted} processes, or unset RANK and WORLD_SIZE"
        )
    return wanted > 1


def _check(snapshot: Path) -> None:
    """Raises `UsageError` for what cannot be a snapshot, before torch is imported to read it."""
    try:
        there = snapshot.exists()
    except OSError as error:
        raise UsageError(f"cannot read {snapshot}: {error.strerror or error}") from error
    if not there:
        folder = snapshot.parent
        others = [str(one.name) for one in folder.glob("*.pt")] if folder.is_dir() else []
        near = get_close_matches(snapshot.name, others, 1, 0.3)
        hint = f"; did you mean {folder / near[0]}?" if near else ""
        raise UsageError(f"no such snapshot: {snapshot} (looked in {Path.cwd()}){hint}")
    if snapshot.is_file() and not zipfile.is_zipfile(snapshot):
        hint = f"; to run it: nanodoc run {snapshot}" if snapshot.suffix == ".py" else ""
        raise UsageError(f"{snapshot} is not a snapshot, or is truncated{hint}")


def _rows(text: str | None) -> tuple[int, ...]:
    try:
        rows = tuple(int(item) for item in text.split(",")) if text is not None else ()
    except ValueError:
        raise UsageError(
            f"--samples {text!r}: write numbers separated by commas, such as 3,17"
        ) from None
    if len(set(rows)) != len(rows):
        raise UsageError(f"--samples {text!r} lists a sample twice")
    return rows
