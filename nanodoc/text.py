"""Text from strangers, made safe to print."""

from __future__ import annotations

from collections.abc import Iterable


def clean(text: str) -> str:
    """`text` without control characters: a log or a file name must not move the cursor or recolour
    the terminal."""
    return "".join(
        ch if ch.isprintable() or ch == "\t" else " " if ch.isspace() else f"\\x{ord(ch):02x}"
        for ch in text
    )


def clean_lines(text: str) -> str:
    """`text` with its lines, and without control characters in them."""
    return "\n".join(clean(line) for line in text.split("\n"))


def seconds(value: float) -> str:
    """`45 µs`, `1.2 ms` or `3.4 s`."""
    return (
        f"{value * 1e6:.0f} µs"
        if value < 1e-3
        else f"{value * 1e3:.3g} ms"
        if value < 1
        else f"{value:.3g} s"
    )


def ranges(numbers: Iterable[int]) -> str:
    """`0–2, 5` for 0, 1, 2, 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}–{p[-1]}" for p in parts)
