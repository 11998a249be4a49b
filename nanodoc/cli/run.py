"""`nanodoc run FILE.py:NAME` and `nanodoc run SCRIPT -- ARGUMENTS`: instrumented steps, then a
ranked diagnosis."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from nanodoc.cli.common import deliver, deliver_of_script, examined, payload_on_stdout
from nanodoc.cli.options import ConfigFile, Entrypoint, configured, settings_of
from nanodoc.errors import UsageError
from nanodoc.pipeline.after_run import prepared
from nanodoc.supervise.job import Job
from nanodoc.supervise.launch import Launch, is_script, trains_nothing

_LAUNCH = "nanodoc.launch"
_BEHIND = "nanodoc.behind"
_USAGE = 2  # what a script ends with that does not know an option


class RunCommand(TyperCommand):
    """Everything after a script is the script's own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Splits the command line where the script's own begins."""
        own, launch = _split(args, self._takes_value())
        ctx.meta[_LAUNCH] = launch
        if launch is not None and "--" not in args:
            names = {name for parameter in self.params for name in parameter.opts}
            ctx.meta[_BEHIND] = [
                word
                for word in launch.arguments
                if word.startswith("--") and word.partition("=")[0] in names
            ]
        return super().parse_args(ctx, own)

    def _takes_value(self) -> set[str]:
        return {
            name
            for parameter in self.params
            if not getattr(parameter, "is_flag", False) and not getattr(parameter, "count", False)
            for name in (*parameter.opts, *parameter.secondary_opts)
            if name.startswith("-")
        }


def _split(arguments: Sequence[str], with_value: set[str]) -> tuple[list[str], Launch | None]:
    """(nanodoc's own arguments with the target, what to launch; None where it is a recipe)"""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "-m":
            if position + 1 == len(arguments):
                raise UsageError("-m needs the name of a module, for example -m pkg.train")
            name, rest = arguments[position + 1], arguments[position + 2 :]
            launch = Launch(target=name, arguments=_without_dashes(rest), module=True)
            return [*arguments[:position], name], launch
        if word == "--" or not word.startswith("-"):
            break
        position += 2 if word in with_value else 1
    if position >= len(arguments) or arguments[position] == "--":
        return list(arguments), None
    target, rest = arguments[position], arguments[position + 1 :]
    if is_script(target) or (rest[:1] == ["--"] and ":" not in target):
        launch = Launch(target=target, arguments=_without_dashes(rest))
        return list(arguments[: position + 1]), launch
    return list(arguments), None


def _without_dashes(arguments: Sequence[str]) -> tuple[str, ...]:
    return tuple(arguments[1:] if arguments[:1] == ["--"] else arguments)


@configured("run")
def run(
    ctx: typer.Context, entrypoint: Entrypoint, config: ConfigFile = None, **flags: Any
) -> None:
    """Run a training under watch and print a ranked diagnosis: a recipe (FILE.py:NAME), or a
    script as it is, with the arguments that are its own behind it (train.py -- --lr 3e-4, or -m
    pkg.train)."""
    settings = settings_of(flags, config)
    after = prepared(settings, first=os.environ.get("RANK", "0") == "0")
    launch = ctx.meta.get(_LAUNCH)
    if launch is None:
        with payload_on_stdout() as stdout:
            job = Job(command="run", target=entrypoint, config=settings)
            report = after.report(examined(job, settings.live))
            deliver(report, settings, stdout)
        return
    only_defines = None if launch.module else trains_nothing(launch.target)
    if only_defines is not None:
        raise UsageError(
            f"{launch.target} trains nothing when it is run: {only_defines}; give the script that "
            f"trains, or a function that returns what to train ({launch.target}:NAME); "
            f"nanodoc init {launch.target} begins one"
        )
    job = Job(command="run", target=launch.target, config=settings, launch=launch, alone=False)
    report = after.report(examined(job))
    if report.script_status == _USAGE and not report.vitals.steps and ctx.meta.get(_BEHIND):
        typer.echo(_misplaced(ctx.meta[_BEHIND], launch), err=True)
    # stdout is the script's own
    deliver_of_script(report, settings, sys.stderr)


def _misplaced(options: Sequence[str], launch: Launch) -> str:
    several = len(options) > 1
    target = f"-m {launch.target}" if launch.module else launch.target
    return (
        f"nanodoc: {' and '.join(options)} behind the script {'are' if several else 'is'} the "
        f"script's own; nanodoc's options stand before it: nanodoc run {options[0]} … {target}"
    )
