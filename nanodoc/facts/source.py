"""Places in the user's source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSpan:
    """A piece of the user's source: `line`/`end_line` from 1, `column`/`end_column` from 1, the end
    exclusive."""

    file: str
    line: int
    end_line: int
    column: int
    end_column: int
    function: str
    code: str
    """The source lines from `line` to `end_line`, dedented, joined by newlines."""
    indent: int = 0
    """Columns that dedenting took off the left of `code`."""

    @property
    def place(self) -> str:
        """`train.py:38`"""
        return f"{self.file}:{self.line}"

    @property
    def expression(self) -> str | None:
        """The text between the columns, where it lies on one line."""
        if self.line != self.end_line:
            return None
        return self.code[self.column - 1 - self.indent : self.end_column - 1 - self.indent] or None
