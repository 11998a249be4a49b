"""`nanodoc run`: instrumented steps of a script or a recipe, then a ranked diagnosis."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from nanodoc.cli.common import deliver, deliver_of_script, examined, payload_on_stdout
from nanodoc.cli.help import Command
from nanodoc.cli.options import ConfigFile, configured, given_of, settings_of
from nanodoc.config import PANELS, Config
from nanodoc.errors import UsageError
from nanodoc.pipeline.after_run import prepared
from nanodoc.recipe.target import check_module, check_recipe, check_script, names_a_function
from nanodoc.supervise.job import Job
from nanodoc.supervise.launch import Launch, is_script

_LAUNCH = "nanodoc.launch"
_BEHIND = "nanodoc.after"
_USAGE = 2  # what a script ends with that does not know an option
_RECIPES_ONLY = ("device", "amp", "seed")


class RunCommand(Command):
    """Splits the command line between nanodoc and the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """With `--` on the line, everything before it is nanodoc's; without it, everything after
        the script is the script's."""
        takes_value = self._takes_value()
        own, launch = _split(args, takes_value)
        has_target = _target_at(own, takes_value) < len(own)
        if "--help" not in args and launch is None and not has_target:
            raise UsageError(
                "what is to be run? A script: nanodoc run train.py, or a recipe: nanodoc run "
                "train.py:build"
            )
        ctx.meta[_LAUNCH] = launch
        if launch is not None and "--" not in args:
            names = {name for parameter in self.params for name in parameter.opts}
            ctx.meta[_BEHIND] = [
                word
                for word in launch.arguments
                if word.startswith("-") and word.partition("=")[0] in names
            ]
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The three kinds of target, as they are written."""
        return ["[OPTIONS]", "SCRIPT|FILE.py:NAME|-m MODULE", "[ARGS]"]

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
    position = _target_at(arguments, with_value)
    if position >= len(arguments) or arguments[position] == "--":
        return list(arguments), None
    module = arguments[position] == "-m"
    if module and arguments[position + 1 :][:1] in ([], ["--"]):
        raise UsageError("-m needs the name of a module, for example -m pkg.train")
    before, position = list(arguments[:position]), position + module
    target, rest = arguments[position], list(arguments[position + 1 :])
    dashes = "--" in rest
    if not module and not (dashes and not names_a_function(target)) and not is_script(target):
        return list(arguments), None
    end = rest.index("--") if dashes else 0
    launch = Launch(target=target, arguments=tuple(rest[end + dashes :]), module=module)
    return [*before, *rest[:end], target], launch


def _target_at(arguments: Sequence[str], with_value: set[str]) -> int:
    """Where the target stands, or the -m before it."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word in ("-m", "--") or not word.startswith("-"):
            break
        position += 2 if word in with_value else 1
    return position


@configured("run")
def run(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(metavar="TARGET", hidden=True)],
    as_module: Annotated[
        str | None,
        typer.Option(
            "-m",
            metavar="MODULE",
            help="Run a module as a script, as `python -m` does.",
            rich_help_panel=PANELS[0],
        ),
    ] = None,
    config: ConfigFile = None,
    **flags: Any,
) -> None:
    """Run a training under watch and print a diagnosis.

    \b
    nanodoc run train.py --lr 3e-4
    nanodoc run train.py --output report.html -- --lr 3e-4
    nanodoc run -m pkg.train --lr 3e-4
    nanodoc run train.py:build --steps 200

    SCRIPT is your training script, unchanged. Arguments after it go to the script. If the line
    contains --, only the arguments after -- go to the script; options before it are nanodoc's.

    FILE.py:NAME is a recipe: a function that returns what to train (nanodoc init writes one).
    """
    if as_module is not None:  # the one that counts stands in the place of the target
        raise UsageError(f"-m {as_module} and {target}: give one of them, before its arguments")
    settings = settings_of(flags, config)
    launch = ctx.meta.get(_LAUNCH)
    _check(target, launch)
    after = prepared(settings, first=os.environ.get("RANK", "0") == "0")
    if launch is None:
        with payload_on_stdout() as stdout:
            job = Job(command="run", target=target, config=settings)
            report = after.report(examined(job, settings.live))
            deliver(report, settings, stdout)
        return
    idle = [name for name in _RECIPES_ONLY if name in given_of(flags)]
    if idle:
        names, verb = " and ".join(f"--{name}" for name in idle), "do" if idle[1:] else "does"
        said = f"{names} {verb} nothing for a script, which makes its own choices"
        typer.echo(f"nanodoc: {said}; pass the script's own arguments after --", err=True)
    settings = _for_script(settings, launch)
    job = Job(command="run", target=launch.target, config=settings, launch=launch, alone=False)
    report = after.report(examined(job))
    if report.script_status == _USAGE and not report.vitals.steps and ctx.meta.get(_BEHIND):
        typer.echo(_misplaced(ctx.meta[_BEHIND], launch), err=True)
    # stdout is the script's own
    deliver_of_script(report, settings, sys.stderr, None if launch.module else launch.target)


def _for_script(settings: Config, launch: Launch) -> Config:
    """Options that end a run early end a script, too. Raises `UsageError` for one that only a
    recipe can have."""
    if settings.overfit_batch:
        target = "train.py" if launch.module else launch.target
        raise UsageError(
            "--overfit-batch trains on one batch, which only a recipe lets it choose: nanodoc init "
            f"{target} writes one"
        )
    steps = [settings.steps] if settings.steps is not None else []
    if settings.preflight:
        steps.append(1)
    if settings.abort_after_step is not None:
        steps.append(settings.abort_after_step + 1)
    return replace(settings, steps=min(steps)) if steps else settings


def _check(target: str, launch: Launch | None) -> None:
    """Raises `UsageError` for a target that cannot be run, before anything of it runs."""
    if launch is None:
        check_recipe(target, "run")
    elif launch.module:
        check_module(target)
    else:
        check_script(target)


def _misplaced(options: Sequence[str], launch: Launch) -> str:
    several = len(options) > 1
    target = f"-m {launch.target}" if launch.module else launch.target
    arguments = shlex.join(launch.arguments)
    return (
        f"nanodoc: {' and '.join(options)} after the script {'were' if several else 'was'} passed "
        f"to the script; to give {'them' if several else 'it'} to nanodoc, add --: nanodoc run "
        f"{target} {arguments} --"
    )
