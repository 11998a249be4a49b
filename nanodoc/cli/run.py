"""`nanodoc run FILE.py:NAME`: instrumented steps, then a ranked diagnosis."""

from __future__ import annotations

from typing import Any

from nanodoc.cli.common import deliver, examined, payload_on_stdout
from nanodoc.cli.options import ConfigFile, Entrypoint, configured, settings_of
from nanodoc.supervise.job import Job


@configured("run")
def run(entrypoint: Entrypoint, config: ConfigFile = None, **flags: Any) -> None:
    """Run some training steps under watch and print a ranked diagnosis."""
    settings = settings_of(flags, config)
    with payload_on_stdout() as stdout:
        deliver(
            examined(Job(command="run", target=entrypoint, config=settings), settings.live),
            settings,
            stdout,
        )
