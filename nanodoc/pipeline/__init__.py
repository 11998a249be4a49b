"""The wiring of the rooms: entrypoint → recipe → engine → experiments → rules → fixes → report. One file per command."""

from nanodoc.pipeline.check_grad_graph import check_grad_graph
from nanodoc.pipeline.replay import replay
from nanodoc.pipeline.run import run

__all__ = ["check_grad_graph", "replay", "run"]
