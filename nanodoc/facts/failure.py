"""An exception of the user's code."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.errors import Phase
from nanodoc.facts.source import SourceSpan


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An exception of the user's code, with its traceback trimmed to the user's frames."""

    type: str
    message: str
    phase: Phase
    frames: tuple[SourceSpan, ...]
    """The user's frames, outermost first."""
    raised_by_torch: bool
    torch_function: str | None
    """The torch function called from the innermost user frame."""
    origin: str = ""
    """The file below torch's folder whose code raised, such as `nn/functional.py`; "" for other
    code, and for torch's C functions."""
    collating: bool = False
    """It was raised while samples were put together into a batch."""

    @property
    def first_line(self) -> str:
        """Of its message; "" where it has none."""
        return self.message.strip().partition("\n")[0]

    notes: tuple[str, ...] = ()
