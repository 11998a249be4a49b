"""Text from strangers, made safe to print."""

from __future__ import annotations


def clean(text: str) -> str:
    """`text` without control characters: a log or a file name must not move the cursor or recolour the terminal."""
    return "".join(ch if ch.isprintable() or ch == "\t" else " " if ch.isspace() else f"\\x{ord(ch):02x}" for ch in text)
