"""The texts that users read: README, docs, help, pages of the rules, findings and errors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nanodoc

PACKAGE = Path(nanodoc.__file__).parent
ROOT = PACKAGE.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LONGEST = 35  # words of a sentence in the docs

TICS = re.compile(
    r"\b(?:told of|comes? of|came of|(?:is|are|was|were) none of|another than"
    r"|behind|of its own|of their own|of one's own|given again|at hand|as far as could be seen"
    r"|whatever stands)\b"
)


def texts_of_the_package() -> Iterator[tuple[str, str]]:
    """(place, text) of each string that can reach a user: every string constant that is no
    docstring, the pages of the rules, and the docstrings of the commands and of the public API."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith("clinic/patients/"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                docstrings[id(node.value)] = node.value
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or id(node) in docstrings:
                continue
            if isinstance(node.value, str):
                yield f"{name}:{node.lineno}", node.value
        if name.startswith("rules/") and (page := ast.get_docstring(tree)) and "## " in page:
            yield f"{name}:1", page
        if name.startswith(("cli/", "integrations/")) or name in ("in_code.py", "pytest_plugin.py"):
            for node in tree.body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_":
                    yield f"{name}:{node.lineno}", ast.get_docstring(node) or ""


@pytest.mark.parametrize(
    "room", sorted({path.name for path in PACKAGE.iterdir() if path.name[0] not in "_."})
)
def test_texts_of_the_package_use_usual_words(room: str) -> None:
    found = [
        f"{place}: {match[0]!r} in {' '.join(text.split())[:100]!r}"
        for place, text in texts_of_the_package()
        if place.startswith((f"{room}/", f"{room}:"))
        for match in TICS.finditer(" ".join(text.split()))
    ]
    assert found == []


def sentences_of(page: str) -> Iterator[str]:
    """The sentences of a Markdown page, without code, tables' rules and links' addresses."""
    page = re.sub(r"^(```|~~~).*?^\1", "", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"\]\([^)]*\)", "]", page)
    block: list[str] = []
    blocks: list[str] = []
    for line in [*page.splitlines(), ""]:
        text = line.strip()
        starts = re.match(r"([-*+]|\d+\.|#+|>|\|)\s*", text)
        code = line.startswith("    ") and not block
        if not text or starts or code:
            blocks.append(" ".join(block))
            block = []
        if text.startswith("|"):
            blocks += text.split("|")
        elif text and not code:
            block.append(text[starts.end() :] if starts else text)
    for text in blocks:
        text = re.sub(r"`[^`]*`", "code", text)
        yield from (one for one in re.split(r"(?<=[.!?])\s+|(?<=:)\s+(?=code)", text) if one)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_are_written_in_short_sentences_and_usual_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    long = [one for one in sentences_of(text) if len(one.split()) > LONGEST]
    assert long == []
    prose = re.sub(r"^    .*$|`[^`]*`", "", text, flags=re.MULTILINE)
    assert [match[0] for match in TICS.finditer(" ".join(prose.split()))] == []


def test_a_long_sentence_and_a_tic_are_found() -> None:
    page = "- short one.\n\n" + "word " * 40 + "end.\n\n    code " + "x " * 50
    (found,) = [one for one in sentences_of(page) if len(one.split()) > LONGEST]
    assert found.endswith("word end.")
    assert TICS.search("the batch is told of")
    assert not TICS.search("the batch is reported")
