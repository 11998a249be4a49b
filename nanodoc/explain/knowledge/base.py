"""The entries of the knowledge base: read when first needed, checked when read, searched by how
much of a message they match."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
_REQUIRED = ("id", "patterns", "title", "means", "causes", "next", "fix", "rule", "example")
_OPTIONAL = ("context", "priority", "effect", "outer", "also", "unsaid", "larger")
_PLACE = re.compile(r"\{([a-z_]\w*)\}")
# "a {name}" becomes "an" before a vowel.
_ARTICLE = re.compile(r"\b([Aa]) (?=\{([a-z_]\w*)\})")
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,9})?) ?([KMGT]?)i?B?")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# What a pattern sees of a text: quantifiers in the patterns are bounded, and so is what they run
# over.
_LONGEST_LINE, _LONGEST_TEXT = 2_000, 64_000
# A value of a message that is put into a sentence: a shape or a name, not a page.
_LONGEST_VALUE = 160


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One kind of message. Of all entries that match, the one with the highest priority wins, then
    one that needs `context`, then the one whose pattern matches the longest text."""

    id: str
    patterns: tuple[re.Pattern[str], ...]
    context: tuple[re.Pattern[str], ...]
    """One of these must be found somewhere in the whole paste, such as the kernel's assertion above
    a CUDA error."""
    title: str
    means: str
    causes: tuple[str, ...]
    next: str
    fix: str
    rule: str | None
    examples: tuple[str, ...]
    priority: int
    effect: bool
    """The message tells that something else had failed before: a lost peer, a timeout, a launcher's
    summary."""
    outer: bool
    """Of a chain, this message says more than the one it was raised from: a framework's own words
    for an error below it."""
    larger: tuple[str, tuple[tuple[float, str], ...]] | None
    """A group of the pattern whose size must be larger than a weighted sum of others, such as
    memory that is free against what was asked for."""
    unsaid: Mapping[str, str]
    """What stands in a sentence for a part of the message that this variant of it does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """An entry, spoken of one message: its numbers and names are filled in."""

    id: str
    title: str
    means: str
    causes: tuple[str, ...]
    next: str
    fix: str
    rule: str | None
    effect: bool
    outer: bool
    vague: bool
    """Its entry is only for what no other one knows, such as a part of a message."""
    matched: str
    """The line of the message in which it was recognised."""


def explained(text: str, *, context: str = "", effects: bool = True) -> Explanation | None:
    """What is known about a message such as "RuntimeError: …"; None where nothing is.

    `context` is what surrounds it (a log). Without `effects`, entries that only tell of another
    failure are left out.
    """
    seen = _bounded(text)
    around = f"{seen}\n{_bounded(context)}" if context else seen
    best: tuple[tuple[int, bool, int], Entry, re.Match[str]] | None = None
    for entry in entries():
        if entry.effect and not effects:
            continue
        found = [
            match
            for pattern in entry.patterns
            if (match := pattern.search(seen)) and _is_larger(entry, match)
        ]
        if not found or (
            entry.context and not any(pattern.search(around) for pattern in entry.context)
        ):
            continue
        longest = max(found, key=_length)
        rank = (entry.priority, bool(entry.context), _length(longest))
        if best is None or rank > best[0]:
            best = (rank, entry, longest)
    return _spoken(best[1], best[2]) if best else None


def _is_larger(entry: Entry, match: re.Match[str]) -> bool:
    if entry.larger is None:
        return True
    larger, others = entry.larger
    return _size(match, larger) > sum(weight * _size(match, other) for weight, other in others)


def _size(match: re.Match[str], name: str) -> float:
    """A number or an amount of memory; 0 where this variant of the message does not have it."""
    found = _SIZE.fullmatch(match.groupdict().get(name) or "0")
    return float(found[1]) * 2 ** _UNITS[found[2]] if found else 0.0


def _length(match: re.Match[str]) -> int:
    return match.end() - match.start()


def _bounded(text: str) -> str:
    """`text` with long lines and a long middle left out."""
    if len(text) > _LONGEST_TEXT:
        text = text[: _LONGEST_TEXT // 2] + "\n" + text[-_LONGEST_TEXT // 2 :]
    return "\n".join(line[:_LONGEST_LINE] for line in text.split("\n"))


def _spoken(entry: Entry, match: re.Match[str]) -> Explanation:
    said = {name: value for name, value in match.groupdict().items() if value}

    def filled(text: str) -> str:
        # only the pattern's own groups are replaced, by their text: the message is data, never a
        # format
        text = _ARTICLE.sub(
            lambda article: (
                article[1] + ("n " if _value(article[2], said, entry)[:1] in "AEIOaeio" else " ")
            ),
            text,
        )
        return _PLACE.sub(lambda place: _value(place[1], said, entry), text).strip()

    return Explanation(
        id=entry.id,
        title=filled(entry.title),
        means=filled(entry.means),
        causes=tuple(filled(cause) for cause in entry.causes),
        next=entry.next,
        fix=filled(entry.fix),
        rule=entry.rule,
        effect=entry.effect,
        outer=entry.outer,
        vague=entry.priority < 0,
        matched=" ".join(_lines(match).split()),
    )


def _lines(match: re.Match[str]) -> str:
    """The whole lines that hold a match."""
    text = match.string
    end = text.find("\n", match.end())
    return text[text.rfind("\n", 0, match.start()) + 1 : end if end >= 0 else len(text)]


def _value(name: str, said: Mapping[str, str], entry: Entry) -> str:
    if name not in said:
        return entry.unsaid.get(name, f"{{{name}}}")
    value = " ".join(said[name].split())
    if len(value) <= _LONGEST_VALUE:
        return value
    return (value[:_LONGEST_VALUE].rpartition(" ")[0] or value[:_LONGEST_VALUE]) + " …"


@lru_cache(maxsize=1)
def entries() -> tuple[Entry, ...]:
    """Every entry, in the order of its file's name. Raises `ValueError` that names the file and
    entry at fault."""
    found: list[Entry] = []
    for path in sorted(_FOLDER.glob("*.yaml")):
        found.extend(read(path.read_text(encoding="utf-8"), path.name))
    for first, second in zip(
        sorted(entry.id for entry in found), sorted(entry.id for entry in found)[1:], strict=False
    ):
        if first == second:
            raise ValueError(f"two entries are called {first}")
    return tuple(found)


def read(text: str, file: str) -> list[Entry]:
    """The entries of one YAML text. Raises `ValueError` that names the entry at fault."""
    import yaml  # 20 ms that only a question about an error needs

    # libyaml's loader, where it is there, is ten times faster and as safe
    rows = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(rows, list):
        raise ValueError(f"{file}: a list of entries is wanted")
    return [_entry(row, f"{file}, entry {number}") for number, row in enumerate(rows, 1)]


def _entry(row: Any, where: str) -> Entry:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: a mapping is wanted")
    where = f"{where} ({row.get('id')})"
    missing, unknown = set(_REQUIRED) - set(row), set(row) - set(_REQUIRED) - set(_OPTIONAL)
    if missing or unknown:
        raise ValueError(f"{where}: missing {sorted(missing)}, unknown {sorted(map(str, unknown))}")
    for key in ("id", "title", "means", "next", "fix", "example"):
        if not isinstance(row[key], str) or not row[key].strip():
            raise ValueError(f"{where}: {key} must be text")
    for key in ("patterns", "causes", "context", "also"):
        if not _texts(row.get(key, ["none"])):
            raise ValueError(f"{where}: {key} must be a list of texts")
    if not _ID.fullmatch(row["id"]):
        raise ValueError(f"{where}: the id must be in kebab-case")
    if row["rule"] is not None and not re.fullmatch(r"ND\d{3}", str(row["rule"])):
        raise ValueError(f"{where}: rule must be a code such as ND301, or null")
    entry = Entry(
        id=row["id"],
        patterns=_compiled(row["patterns"], where),
        context=_compiled(row.get("context", []), where),
        title=row["title"],
        means=row["means"],
        causes=tuple(row["causes"]),
        next=row["next"],
        fix=row["fix"],
        rule=row["rule"],
        examples=(row["example"], *row.get("also", [])),
        priority=int(row.get("priority", 0)),
        effect=bool(row.get("effect", False)),
        outer=bool(row.get("outer", False)),
        larger=_comparison(row.get("larger"), where),
        unsaid=row.get("unsaid", {}),
    )
    _check_places(entry, where)
    return entry


def _texts(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(text, str) and text.strip() for text in value)
    )


def _comparison(value: Any, where: str) -> tuple[str, tuple[tuple[float, str], ...]] | None:
    """`one > other + 0.5 another` taken apart."""
    if value is None:
        return None
    larger, _, others = str(value).partition(" > ")
    terms = [re.fullmatch(r"(?:(\d+(?:\.\d+)?) )?([a-z]\w*)", term) for term in others.split(" + ")]
    if not larger.isidentifier() or not all(terms):
        raise ValueError(f"{where}: larger must read: one > other + 0.5 another")
    return larger, tuple((float(term[1] or 1), term[2]) for term in terms if term)


def _compiled(patterns: list[str], where: str) -> tuple[re.Pattern[str], ...]:
    try:
        return tuple(re.compile(pattern, re.MULTILINE) for pattern in patterns)
    except re.error as error:
        raise ValueError(f"{where}: bad pattern: {error}") from error


def _check_places(entry: Entry, where: str) -> None:
    """Every `{name}` that some pattern knows has a value for all of them; a command to copy holds
    no text of a message."""
    known = {name for pattern in entry.patterns for name in pattern.groupindex}
    for text in (entry.title, entry.means, entry.fix, *entry.causes):
        for name in _PLACE.findall(text):
            if (
                name in known
                and name not in entry.unsaid
                and any(name not in pattern.groupindex for pattern in entry.patterns)
            ):
                raise ValueError(
                    f"{where}: {{{name}}} is not in every pattern, and unsaid has nothing for it"
                )
    if any(name in known for name in _PLACE.findall(entry.next)):
        raise ValueError(f"{where}: next must hold nothing of the message")
