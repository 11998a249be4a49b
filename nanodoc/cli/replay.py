"""`nanodoc replay SNAPSHOT`: the tripped step again, under the tracer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nanodoc.cli.common import deliver, given, payload_on_stdout
from nanodoc.cli.run import Amp, Device, FailOn, Format, Ignore, Output, Select
from nanodoc.config import load_config
from nanodoc.rules.registry import check_codes


def replay(
    snapshot: Annotated[Path, typer.Argument(help="A nanodoc-step<N>.pt, or a bare {'x', 'y', 'state'} file.")],
    entrypoint: Annotated[
        str | None, typer.Option("--entrypoint", metavar="FILE.py:NAME", help="The recipe, if not the one the snapshot names.")
    ] = None,
    device: Device = None,
    amp: Amp = None,
    output_format: Format = None,
    output: Output = None,
    fail_on: FailOn = None,
    select: Select = None,
    ignore: Ignore = None,
) -> None:
    """Re-run the step a snapshot holds and print its diagnosis."""
    flags = given(device=device, amp=amp, output_format=output_format, output=output, fail_on=fail_on, select=select, ignore=ignore)
    settings = load_config(None, flags)
    check_codes(settings.select + settings.ignore)
    with payload_on_stdout() as stdout:
        from nanodoc import pipeline

        deliver(pipeline.replay(snapshot, settings, entrypoint), settings, stdout)
