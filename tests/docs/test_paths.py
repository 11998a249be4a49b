"""The pages for contributors name files and folders that exist, and every address of the project
is the one in pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/style.md",
    "docs/adding-a-rule.md",
]
FOLDERS = ("benchmarks", "configs", "docs", "nanodoc", "scripts", "tests")
SUFFIXES = ("py", "md", "toml", "yaml", "txt")


def paths_in(page: str) -> Iterator[str]:
    """The paths in backticks, and those that code blocks name. `nanodoc/rules/<family>` is a
    pattern: any family will do."""
    for named in re.findall(r"`([^`\n]+)`", page):
        first, slash, _ = named.partition("/")
        if " " in named or first == "nanodoc-out":  # a command; what a run writes
            continue
        if slash or first in FOLDERS or named.rpartition(".")[2] in SUFFIXES:
            yield named
    for line in page.splitlines():
        if line.startswith("    "):
            yield from re.findall(rf"(?<![\w/])(?:{'|'.join(FOLDERS)})/[\w/.-]*\w", line)


def exists(path: str) -> bool:
    pattern = re.sub(r"<\w+>", "*", path).rstrip("/")
    found = ROOT.glob(pattern) if "/" in pattern else ROOT.glob(f"**/{pattern}")
    return next(found, None) is not None


@pytest.mark.parametrize("page", PAGES)
def test_a_path_that_a_page_names_exists(page: str) -> None:
    named = sorted(set(paths_in((ROOT / page).read_text(encoding="utf-8"))))
    assert named, "the page names files and folders"
    assert [path for path in named if not exists(path)] == []


def test_a_folder_that_is_gone_is_found() -> None:
    page = "In `nanodoc/watch` and `nanodoc/rules/<family>/__init__.py`.\n\n    scripts/gone -k x\n"
    assert [path for path in paths_in(page) if not exists(path)] == [
        "nanodoc/watch",
        "scripts/gone",
    ]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
SHOWN = ("*.md", "*.yml", "*.toml", ".*.yaml", "docs/**/*.md", "configs/*.yaml", "nanodoc/**/*.py")


@pytest.mark.parametrize("pattern", SHOWN)
def test_every_address_of_the_project_is_that_of_pyproject(pattern: str) -> None:
    for path in ROOT.glob(pattern):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"(?:github\.com/|uses: )([\w.-]+/nanodoc)\b", text):
            assert f"https://github.com/{name}" == REPOSITORY, path


def test_the_links_of_the_package_are_below_one_address() -> None:
    assert set(PROJECT["urls"]) >= {"Homepage", "Documentation", "Issues", "Changelog"}
    assert all(address.startswith(REPOSITORY) for address in PROJECT["urls"].values())
