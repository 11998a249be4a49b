"""`nanodoc run SCRIPT -- ARGUMENTS`: the script as it is, and the processes that it starts to train
in → report."""

from __future__ import annotations

from nanodoc.config import Config
from nanodoc.errors import UsageError, said
from nanodoc.facts.untraced import Untraced
from nanodoc.pipeline.processes import Processes
from nanodoc.pipeline.script import ScriptRun
from nanodoc.progress import Progress
from nanodoc.report.report import Report
from nanodoc.script.launcher import Program
from nanodoc.script.loops import Loops
from nanodoc.script.outside import StopReplay
from nanodoc.script.states import ScriptEnded
from nanodoc.supervise.launch import Launch


def run_script(
    launch: Launch,
    config: Config,
    progress: Progress | None = None,
    sought: Untraced | None = None,
) -> Report:
    """Runs a script to its end, or to the step that is sick, and returns what was found. `sought`:
    it runs a second time, muted, for this step. Raises `UsageError` where there is no such script,
    and where a second run would have to do what it must not."""
    loops = Loops()
    program = Program(launch, loops)
    told = progress or Progress()
    refused: list[str] = []

    def once_more() -> None:
        try:
            program.run()
        except StopReplay as error:
            refused.append(said(error))
            raise ScriptEnded from None

    with Processes(str(launch), config, program.root, loops) as processes:
        train = processes.ending(program.run if sought is None else once_more)
        run = ScriptRun(str(launch), train, loops, config, told, launch=launch, sought=sought)
        report = processes.told(run.run())
    if refused:
        raise UsageError(refused[0])
    return report
