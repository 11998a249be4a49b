"""`--live`: the vital signs of a run on the terminal while it goes on."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from nanodoc.progress import LiveMetrics, Progress

_SECONDS = 0.2  # between two pictures


@contextlib.contextmanager
def live_view() -> Iterator[Progress]:
    """A table on stderr that is drawn anew as steps go by, and taken away at the end."""
    from rich.console import Console
    from rich.live import Live

    from nanodoc.progress import Progress

    drawn = 0.0
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def show(step: int, steps: int, now: LiveMetrics) -> None:
            nonlocal drawn
            if time.monotonic() - drawn > _SECONDS:
                drawn = time.monotonic()
                live.update(vitals_table(step, steps, now), refresh=True)

        def say(text: str) -> None:
            live.update(text, refresh=True)

        yield Progress(say=say, live=show)


def vitals_table(step: int, steps: int, now: LiveMetrics) -> Table:
    """One row for each vital sign: its course, where it began, where it is."""
    from rich.table import Table

    from nanodoc.report.terminal import sparkline

    table = Table.grid(padding=(0, 2))
    table.add_row("step", f"{step + 1} of {steps}")
    for name, values in (
        ("loss", now.losses),
        ("gradient norm", now.grad_norms),
        ("learning rate", now.rates),
        ("|Δw|/|w|", now.update_ratios),
    ):
        if values:
            table.add_row(name, sparkline(values), f"{values[0]:.4g} → {values[-1]:.4g}")
    if now.samples_per_second is not None:
        table.add_row(
            "throughput",
            f"{now.samples_per_second:.4g} samples/s",
            f"{now.load_share:.0%} of the time waiting for data",
        )
    return table


def wanted(live: bool) -> bool:
    """`--live` was given and there is a terminal to draw on; without one, a line says so."""
    if live and not sys.stderr.isatty():
        print(
            "nanodoc: --live needs a terminal on stderr; the run goes on without it",
            file=sys.stderr,
        )
        return False
    return live
