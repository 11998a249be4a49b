"""`torchrun --nproc-per-node N -m nanodoc net`: do all ranks reach each other, and how fast?"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from nanodoc.cli.common import payload_on_stdout, write_payload
from nanodoc.config import Config
from nanodoc.errors import UsageError

if TYPE_CHECKING:
    from nanodoc.net.launch import Launch
    from nanodoc.net.options import Options

_BACKENDS = ("gloo", "nccl")
_FORMATS = ("full", "json")
_SIZES = "1,16,64"
_MOST_MEBIBYTES = 16384
_WORDLESS_SECONDS = 3.0


Timeout = Annotated[
    float,
    typer.Option("--timeout", help="Seconds to wait for ranks to arrive, and for each check."),
]
_MOST_RANKS = 1024
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend", help="gloo or nccl (default: nccl where every rank has its own GPU)."
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        help="Start this many ranks on this host, without torchrun.",
    ),
]
Sizes = Annotated[
    str,
    typer.Option("--sizes", help="Sizes of the all_reduce whose bandwidth is measured, in MiB."),
]
Drills = Annotated[
    list[str] | None,
    typer.Option(
        "--drill",
        metavar="RANK:KIND[@CHECK]",
        help="Let a rank fail on purpose: die, hang, slow, wrong or version; may be repeated.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Set NCCL_DEBUG=INFO and explain the lines that matter."),
]
Format = Annotated[str, typer.Option("--output-format", help="full or json (default: full).")]
Output = Annotated[
    Path | None,
    typer.Option("--output", help="Write the report to this file instead of stdout."),
]


def net(
    timeout: Timeout = 30.0,
    backend: Backend = None,
    nproc: Ranks = None,
    sizes: Sizes = _SIZES,
    drill: Drills = None,
    verbose: Verbose = False,
    output_format: Format = "full",
    output: Output = None,
) -> None:
    """Check that all ranks reach each other.

    Tries the rendezvous, every collective, and the bandwidth. Start it with torchrun.
    """
    from nanodoc.net.drill import read_drill
    from nanodoc.net.launch import read_launch

    launch = read_launch(os.environ)
    with _said_once(launch):
        _check_flags(timeout, backend, output_format, nproc, launch)
        read_sizes = _sizes(sizes)
        drills = tuple(
            read_drill(text, launch.world_size if launch is not None else nproc)
            for text in drill or ()
        )
    from nanodoc.net.options import Options

    options = Options(
        timeout=timeout, backend=backend, sizes=read_sizes, drills=drills, verbose=verbose
    )
    if launch is not None:
        _as_rank(launch, options, output_format, output)
    elif nproc is not None:
        from nanodoc.net.local import run_ranks

        flags = {
            "--timeout": timeout,
            "--backend": backend,
            "--sizes": sizes,
            "--output-format": output_format,
            "--output": output,
        }
        told = _as_arguments(flags, drill or (), verbose=verbose)
        raise typer.Exit(run_ranks(nproc, ("net", *told)))
    elif output_format == "json":
        raise UsageError(
            "nothing launched this process as a rank (RANK is not set), so there is no report; "
            "nanodoc net says how to launch it"
        )
    else:
        from nanodoc.report.net import guide

        typer.echo(guide(socket.gethostname(), _free_port()), nl=False)


def _check_flags(
    timeout: float,
    backend: str | None,
    output_format: str,
    nproc: int | None,
    launch: Launch | None,
) -> None:
    """Raises `UsageError` for a flag that cannot be."""
    if not 1.0 <= timeout <= 86400.0:
        raise UsageError(f"--timeout {timeout:g} must be between 1 and 86400 seconds")
    if backend is not None and backend not in _BACKENDS:
        raise UsageError(f"--backend {backend!r} is not one of {', '.join(_BACKENDS)}")
    if output_format not in _FORMATS:
        raise UsageError(f"--output-format {output_format!r} is not one of {', '.join(_FORMATS)}")
    if nproc is not None and nproc < 1:
        raise UsageError(f"--nproc {nproc} must be at least 1")
    if nproc is not None and nproc > _MOST_RANKS:
        raise UsageError(f"--nproc {nproc} must be at most {_MOST_RANKS}: each is a process")
    if nproc is not None and launch is not None:
        raise UsageError("--nproc starts ranks itself; leave it out under torchrun and srun")


def _as_arguments(
    flags: Mapping[str, object], drills: Sequence[str], *, verbose: bool
) -> list[str]:
    """The command line that gives a rank these flags."""
    arguments = [
        text for name, value in flags.items() if value is not None for text in (name, str(value))
    ]
    arguments += [text for drill in drills for text in ("--drill", drill)]
    return [*arguments, *(["--verbose"] if verbose else [])]


@contextlib.contextmanager
def _said_once(launch: Launch | None) -> Iterator[None]:
    """All ranks have the same command line: only the first says what is wrong with it."""
    try:
        yield
    except UsageError:
        if launch is not None and launch.rank > 0:
            # torchrun ends all ranks once one has ended, also the one that says why
            time.sleep(_WORDLESS_SECONDS)
            raise typer.Exit(2) from None
        raise


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and 1 <= int(part) <= _MOST_MEBIBYTES for part in parts):
        raise UsageError(
            f"--sizes {text!r} must be whole numbers of MiB from 1 to {_MOST_MEBIBYTES}, such as "
            f"{_SIZES}"
        )
    return tuple(sorted({int(part) * 2**20 for part in parts}))


def _free_port() -> int:
    """29500, torch's own default, where it is free."""
    for port in (29500, 0):
        with contextlib.suppress(OSError), socket.create_server(("", port)) as server:
            return int(server.getsockname()[1])
    return 29500


def _as_rank(launch: Launch, options: Options, output_format: str, output: Path | None) -> None:
    """One rank of the check, to its very end: a thread that hangs in a collective would block any
    other way out than `os._exit`."""
    from nanodoc.net import nccl_log

    log = nccl_log.enable(os.environ) if options.verbose else tuple
    # else NCCL's watchdog kills a process that could still report
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    if not options.verbose:
        # torch's store warns with C++ frames where one line of ours says it
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    code = 3
    try:
        with payload_on_stdout() as stdout:
            code = _rank(
                launch,
                options,
                log,
                Config(
                    output=str(output) if output is not None else None, output_format=output_format
                ),
                stdout,
            )
    except UsageError as error:
        code = error.exit_code
        print(f"nanodoc: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        print(
            f"nanodoc: rank {launch.rank}: internal error: {type(error).__name__}: {said}",
            file=sys.stderr,
        )
    finally:
        nccl_log.discard(os.environ)
        sys.stderr.flush()
        os._exit(code)


def _rank(
    launch: Launch,
    options: Options,
    log: Callable[[], Sequence[str]],
    config: Config,
    stdout: TextIO,
) -> int:
    from nanodoc.net.board import NoRendezvousError
    from nanodoc.net.supervisor import Supervisor
    from nanodoc.report.net import render, render_json

    supervisor = Supervisor(launch, options, log)
    try:
        report = supervisor.run()
        if isinstance(report, int):
            return report
        code = 130 if supervisor.interrupted else 0 if report.healthy else 1
        try:
            write_payload(
                lambda look: (
                    render_json(report)
                    if config.output_format == "json"
                    else render(report, color=look.color)
                ),
                config,
                stdout,
                form=config.output_format,
            )
        finally:
            supervisor.release(code)
        return code
    except NoRendezvousError as error:
        print(
            f"nanodoc: rank {launch.rank} of {launch.world_size} on {socket.gethostname()}: "
            f"{error}",
            file=sys.stderr,
        )
        return 1
