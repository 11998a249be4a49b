"""Blocks of text that fit a terminal: notes wrapped with a hanging indent, lines of source cut to
the part that matters, and as many lines as a reader takes in at once."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

MORE = "…"
WIDTH = 100
"""Columns, where nobody says how many there are."""
_ASCII = str.maketrans(
    {
        **{letter: "_.-:=+*#"[i] for i, letter in enumerate("▁▂▃▄▅▆▇█")},
        "×": "x",
        "✓": "ok",
        "✗": "x",
        "–": "-",
        "−": "-",
        "·": "*",
        "…": "...",
        "→": "->",
        "\u00a0": " ",
        "≤": "<=",
        "≥": ">=",
        "±": "+-",
        "√": "sqrt",
        "∞": "inf",
        "‖": "||",
        "Δ": "d",
        "µ": "u",
        "σ": "sigma",
        "ε": "eps",
        "²": "^2",
        "’": "'",
        "≈": "~",
    }
)
_MEASURE = Console(file=io.StringIO(), force_jupyter=False, highlight=False)
_BEFORE = 8  # columns of a long line shown before the part that is marked


@dataclass(slots=True)
class Part:
    """Lines of a block that belong together. `least` of them stay where room is short; `gives` says
    how soon the part gives up the others, the smallest first."""

    lines: list[Text]
    least: int = 1
    gives: int = 100

    def cut(self, most: int) -> None:
        """Keeps so many lines; the last says that there were more."""
        if len(self.lines) > most:
            self.lines = self.lines[:most]
            if most:
                last = self.lines[-1]
                last.rstrip()
                last.append(f" {MORE}")


@dataclass(slots=True)
class Block:
    """Parts below each other, behind a gutter of `indent` columns, in `width` columns."""

    width: int
    indent: str
    gutter_style: str
    parts: list[Part] = field(default_factory=list)

    def note(
        self, text: str | Text, *, most: int | None = None, least: int = 1, gives: int = 100
    ) -> None:
        """A note of `= text`, wrapped; at most so many lines of it."""
        shown = Text(text) if isinstance(text, str) else text
        if not shown.plain:
            return
        lines = wrapped(shown, self.width - len(self.indent) - 3)
        rows = []
        for number, line in enumerate(lines):
            line.plain = line.plain.replace("\u00a0", " ")  # it has kept words together
            row = Text(f"{self.indent} {'=' if number == 0 else ' '} ", self.gutter_style)
            rows.append(Text().append_text(row).append_text(line))
        part = Part(rows, min(least, len(rows)), gives)
        if most is not None:
            part.cut(most)
        self.parts.append(part)

    def rows(self, rows: list[Text], *, least: int | None = None, gives: int = 100) -> None:
        """Rows as they are."""
        self.parts.append(Part(rows, len(rows) if least is None else least, gives))

    def fit(self, most: int) -> None:
        """Cuts the parts that give most readily until the block has so many lines."""
        for part in sorted(self.parts, key=lambda part: part.gives):
            too_many = sum(len(p.lines) for p in self.parts) - most
            if too_many <= 0:
                return
            part.cut(max(part.least, len(part.lines) - too_many))

    def text(self) -> Text:
        """All of it, each line ended."""
        out = Text()
        for part in self.parts:
            for line in part.lines:
                line.rstrip()
                out.append_text(line).append("\n")
        return out


def wrapped(text: Text, width: int) -> list[Text]:
    """`text` in lines of at most `width` columns."""
    lines = list(text.wrap(_MEASURE, max(width, 20), overflow="fold"))
    for line in lines:
        line.rstrip()
    return lines


def hung(text: Text, width: int) -> Text:
    """`text` with every line that is longer than `width` wrapped, its further lines two columns
    more to the right than it begins."""
    out = Text()
    for line in text.split("\n", include_separator=False, allow_blank=False):
        if line.cell_len <= width:
            out.append_text(line).append("\n")
            continue
        plain = line.plain
        indent = min(len(plain) - len(plain.lstrip()) + 2, width // 2)
        first = wrapped(line, width)[0]
        out.append_text(first).append("\n")
        begins = len(first.plain)
        rest = line[begins + len(plain[begins:]) - len(plain[begins:].lstrip()) :]
        for row in wrapped(rest, width - indent):
            out.append(" " * indent).append_text(row).append("\n")
    return out


def in_few_letters(text: str) -> str:
    """`text` for a terminal that has few letters; what is left is the stream's to escape."""
    return text.translate(_ASCII)


def clipped(line: str, first: int, last: int, room: int) -> tuple[str, int, int]:
    """(the line in at most `room` columns, first, last): cut so that the columns from `first` to
    `last`, the end exclusive, are seen, or as much of them as there is room for."""
    first, last = min(first, len(line)), max(min(last, len(line)), min(first + 1, len(line)))
    if len(line) <= room:
        return line, first, last
    start = 0 if last < room else max(0, min(first - _BEFORE, len(line) - room + 1))
    end = start + room - (2 if start else 1)
    if len(line) - start < room:
        end = len(line)
    shown = (MORE if start else "") + line[start:end] + (MORE if end < len(line) else "")
    shift = start - (1 if start else 0)
    return shown, first - shift, min(last, end) - shift
