"""`nanodoc run SCRIPT -- ARGUMENTS`: the script as it is, and the processes that it starts to train
in → report."""

from __future__ import annotations

from nanodoc.config import Config
from nanodoc.pipeline.processes import Processes
from nanodoc.pipeline.script import ScriptRun
from nanodoc.progress import Progress
from nanodoc.report.report import Report
from nanodoc.script.launcher import Program
from nanodoc.script.loops import Loops
from nanodoc.supervise.launch import Launch


def run_script(launch: Launch, config: Config, progress: Progress | None = None) -> Report:
    """Runs a script to its end, or to the step that is sick, and returns what was found. Raises
    `UsageError` where there is no such script."""
    loops = Loops()
    program = Program(launch, loops)
    told = progress or Progress()
    with Processes(str(launch), config, program.root, loops) as processes:
        train = processes.ending(program.run)
        run = ScriptRun(str(launch), train, loops, config, told, launch=launch)
        return processes.told(run.run())
