"""How a training process ended that could not say so itself, as facts. Nothing here imports
torch."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.errors import Phase
from nanodoc.facts.source import SourceSpan

STACK, LAST_WORDS, SECOND_RUN = "its stack dump", "its last report", "a second run"
"""How the line is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeathFacts:
    """The end of a process. `frames` are the user's, outermost first; memory is in bytes."""

    signal: str | None = None
    """"SIGSEGV", and so on; None where it exited by itself or was ended for taking too long."""
    status: int | None = None
    """The exit status, where it exited by itself."""
    silent_for: float | None = None
    """Seconds without a sign of life, after which it was ended."""
    step: int | None = None
    phase: Phase = "setup"
    frames: tuple[SourceSpan, ...] = ()
    known_from: str = ""
    """STACK, LAST_WORDS or SECOND_RUN."""
    module: str | None = None
    module_type: str | None = None
    call: str | None = None
    """The last function called that is not written in Python."""
    item: int | None = None
    """Index in the data set of the sample being loaded."""
    peak_memory: int | None = None
    memory_limit: int | None = None
    memory_limit_of: str = ""
    killed_for_memory: bool = False
    """The kernel counted a kill for want of memory while it ran."""
    waits: bool = False
    """It was inside a collective."""
    again: bool | None = None
    """Whether a second run ended in the same way at the same place; None where there was none."""
    again_note: str = ""
    in_worker: bool = False
    """A worker process of the data loader ended, not the training's own."""

    @property
    def how(self) -> str:
        """A clause: "was killed by SIGSEGV"."""
        if self.silent_for is not None:
            return f"gave no sign of life for {self.silent_for:.3g} s"
        if self.signal is not None:
            return f"was killed by {self.signal}"
        return f"exited with status {self.status}"
