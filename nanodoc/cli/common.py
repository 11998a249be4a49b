"""What commands share: where output goes, the progress bar, and exit codes."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from nanodoc.artifacts import make_folder
from nanodoc.config import artifact_folder
from nanodoc.errors import UsageError
from nanodoc.progress import Progress
from nanodoc.supervise.job import Job
from nanodoc.text import clean

if TYPE_CHECKING:
    from nanodoc.config import Config
    from nanodoc.diagnosis.rule import Rule
    from nanodoc.report.report import Report
    from nanodoc.report.terminal import Look


@contextlib.contextmanager
def payload_on_stdout() -> Iterator[TextIO]:
    """stdout is the report's alone: what anything else prints meanwhile, C code and worker
    processes too, goes to stderr."""
    if sys.stderr is None:  # closed by whoever started us
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # as above
    stdout = sys.stdout
    try:
        stdout.flush()
        descriptor = stdout.fileno()
        kept = _out_of_reach(descriptor)
    except (OSError, ValueError):  # not a real file: a test's buffer
        with contextlib.redirect_stdout(sys.stderr):
            yield stdout
        return
    payload = os.fdopen(kept, "w", encoding=stdout.encoding or "utf-8")
    os.dup2(sys.stderr.fileno(), descriptor)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield payload
    finally:
        # a full disk, a closed pipe: told when the report was written
        with contextlib.suppress(OSError):
            stdout.flush()
            payload.flush()
        os.dup2(payload.fileno(), descriptor)
        with contextlib.suppress(OSError):
            payload.close()


def _out_of_reach(descriptor: int) -> int:
    """A copy with a high number: trainings close ranges of descriptors that they take for their
    own. Raises `OSError`."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 900)  # 1024 is a usual limit
    except OSError:
        return os.dup(descriptor)


@contextlib.contextmanager
def progress_bar(quiet: bool, live: bool = False) -> Iterator[Progress | None]:
    """A bar on stderr for runs that take a while, and what the examination is trying; with `live`,
    the vital signs instead. None when quiet or when stderr is no terminal."""
    from nanodoc.cli.live import live_view, wanted

    if wanted(live):
        with live_view() as progress:
            yield progress
        return
    if quiet or not sys.stderr.isatty():
        yield None
        return
    import rich.progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("nanodoc"),
        bars.BarColumn(),
        bars.TextColumn("{task.fields[doing]}", markup=False),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, doing="…")

        def update(step: int, steps: int, loss: float) -> None:
            bar.update(
                task,
                completed=step + 1,
                total=steps,
                doing=f"step {step + 1} of {steps}  loss {loss:.4g}",
            )

        yield Progress(update, lambda text: bar.update(task, doing=text))


def examined(job: Job, live: bool = False) -> Report:
    """The job's report: done by a child process, which the report outlives, or right here with
    --in-process. Of several ranks one has the report; the others exit when it is there."""
    config = job.config
    if config.in_process or os.name != "posix":  # process groups and their signals are POSIX's
        from nanodoc.pipeline.child import perform

        with progress_bar(config.quiet or config.brief, live) as progress:
            return perform(job, progress or Progress())
    from nanodoc.pipeline.supervised import supervised, supervised_rank
    from nanodoc.supervise.rendezvous import Ranks

    several = job.command == "run" or job.options.get("together")
    ranks = Ranks.here(artifact_folder(config)) if several else None
    quiet = config.quiet or config.brief or (ranks is not None and ranks.mine > 0)
    with progress_bar(quiet, live) as progress:
        told = progress or Progress()
        job = replace(job, live=told.live is not None)
        if ranks is None:
            return supervised(job, told)
        report = supervised_rank(job, told, ranks)
    if report is None:
        raise typer.Exit(0)
    # once it is out, the others may go: a launcher ends all ranks with the first that fails
    atexit.register(ranks.printed)
    return report


def _say_where(report: Report, config: Config) -> None:
    """The verdict and the file of a report that is not on the terminal, on stderr."""
    if config.output is None or config.quiet or config.brief:
        return
    first = report.findings[0] if report.findings else None
    said = f"{report.verdict}: {first.code} {first.title}" if first is not None else report.verdict
    typer.echo(clean(f"nanodoc: {said}; the report is in {config.output}"), err=True)


def deliver(report: Report, config: Config, stdout: TextIO) -> None:
    """Renders the report to where it was asked for and exits with the public exit code."""
    write_all(partial(_rendered, report), config, stdout)
    _say_where(report, config)
    raise typer.Exit(exit_code(report, config.fail_on))


def _rendered(report: Report, form: str, look: Look) -> str:
    from nanodoc.report.formats import rendered

    return rendered(report, form, look, rules=rules_for(form))


def rules_for(form: str) -> tuple[Rule, ...]:
    """The catalogue, for a form of the report that holds its texts."""
    if form != "sarif":
        return ()
    from nanodoc.rules.catalogue import RULES

    return RULES


def deliver_of_script(report: Report, config: Config, stream: TextIO, script: str | None) -> None:
    """As `deliver`, for a script: without a finding, the exit code is the script's own. Where it
    trained nothing that could be seen, that is all there is to say."""
    status = report.script_status or 0
    told = report.findings or report.accepted
    if not report.vitals.steps and not told and not report.interrupted:
        if not status:
            how = f": nanodoc init {shlex.quote(script)}" if script is not None else ""
            raise UsageError(
                "no optimizer step was seen, so nothing was checked; if a library runs your loop, "
                f"use a recipe{how}"
            )
        raise typer.Exit(status)
    write_all(partial(_rendered, report), config, stream)
    _say_where(report, config)
    raise typer.Exit(exit_code(report, config.fail_on) or status)


def in_color(stdout: TextIO) -> bool:
    """True for a terminal that wants colour."""
    return (
        stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in ("dumb", None)
    )


_NARROWEST, _WIDEST = 40, 200  # columns


def look_of(stream: TextIO, config: Config) -> Look:
    """How the stream shows text: as wide as its terminal, or as COLUMNS says."""
    from nanodoc.report.layout import WIDTH
    from nanodoc.report.terminal import Look

    terminal = config.output is None and stream.isatty()
    columns = shutil.get_terminal_size((WIDTH, 24)).columns if terminal else _columns() or WIDTH
    return Look(
        width=min(max(columns, _NARROWEST), _WIDEST),
        color=config.output is None and in_color(stream),
        links=terminal and in_color(stream) and os.environ.get("TERM") != "linux",
        verbose=config.verbose,
    )


def _columns() -> int:
    told = os.environ.get("COLUMNS", "")
    return int(told) if told.isascii() and told.isdigit() and len(told) < 6 else 0


def write_payload(
    rendered: Callable[[Look], str], config: Config, stdout: TextIO, *, form: str = "full"
) -> None:
    """Writes to --output or stdout what `rendered` gives in the form of that name; it is told how
    that looks."""
    from nanodoc.report.formats import encodable

    text = rendered(look_of(stdout, config))
    if config.output is None:
        text = encodable(text, form, stdout.encoding or "utf-8")
    if config.output is not None:
        path = Path(config.output)
        try:
            write_file(text, path)
        except OSError as error:
            stdout.write(text)
            raise UsageError(
                f"cannot write the report to {path}: {error.strerror or error}; it is on stdout "
                "instead"
            ) from error
    else:
        try:
            stdout.write(text)
            stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UsageError(
                f"cannot write the report to stdout: {error.strerror or error}; --output FILE "
                "writes it elsewhere"
            ) from error


def write_all(shown: Callable[[str, Look], str], config: Config, stdout: TextIO) -> None:
    """Writes the report in its form and then the further ones, each to its file; `shown` gives the
    text of a form. Raises `UsageError` when all that can be written is."""
    form = "concise" if config.brief and config.output_format == "full" else config.output_format
    write_payload(partial(shown, form), config, stdout, form=form)
    wrong = []
    for further, file in config.also.items():
        try:
            write_file(shown(further, look_of(stdout, replace(config, output=file))), Path(file))
        except OSError as error:
            wrong.append(f"cannot write the report to {file}: {error.strerror or error}")
    if wrong:
        raise UsageError("; ".join(wrong))


def write_file(text: str, path: Path) -> None:
    """Raises `OSError`."""
    make_folder(path.parent)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def exit_code(report: Report, fail_on: str) -> int:
    """0, 1 or 130, as REPORT's public table says; usage and internal errors exit elsewhere."""
    if report.interrupted:
        return 130
    levels = {"critical": ("critical",), "warning": ("critical", "warning"), "never": ()}[fail_on]
    return 1 if any(finding.severity in levels for finding in report.findings) else 0
