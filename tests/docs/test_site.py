"""The documentation: it builds strictly, every command and every rule has a page, links lead
somewhere, and the code in it compiles."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
import yaml

from nanodoc._version import __version__
from nanodoc.cli.app import app
from nanodoc.rules.catalogue import RULES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
MADE = {"changelog.md", "rules/index.md", *(f"rules/{rule.code}.md" for rule in RULES)}
"""Pages that scripts/docs makes."""
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a group


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; every warning of the builder is an error."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs", "--output", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


class _Article(HTMLParser):
    """The text of a page without its navigation and its marks for links to headings."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._inside = False
        self._in_mark = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside |= tag == "article"
        self._in_mark |= tag == "a" and ("class", "headerlink") in attrs

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != "article"
        self._in_mark &= tag != "a"

    def handle_data(self, data: str) -> None:
        if self._inside and not self._in_mark:
            self.text += data


def _text(page: Path) -> str:
    parser = _Article()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser.text


def _bare(text: str) -> str:
    """Without white space and the marks of code."""
    return "".join(text.replace("`", "").split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_page_with_its_options(site: Path, command: str) -> None:
    assert f"<!-- help: {command} -->" in (DOCS / "commands" / f"{command}.md").read_text("utf-8")
    shown = _text(site / "commands" / command / "index.html")
    group = typer.main.get_command(app)
    for parameter in group.commands[command].params:  # type: ignore[attr-defined]  # a group
        if parameter.param_type_name == "option" and not parameter.hidden:
            assert parameter.opts[0] in shown


def test_no_page_is_about_a_command_that_is_gone() -> None:
    assert sorted(path.stem for path in (DOCS / "commands").glob("*.md")) == COMMANDS


def test_every_rule_has_a_page_with_the_text_of_explain(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rule in RULES:
        app(["explain", rule.code], standalone_mode=False)
        explained = capsys.readouterr().out
        said = re.sub(r"^## ", "", explained, flags=re.MULTILINE)
        said = said.replace(f"({rule.severity}):", f"{rule.severity}:", 1)
        assert _bare(_text(site / "rules" / rule.code / "index.html")) == _bare(said), rule.code


def test_the_index_lists_every_rule_once(site: Path) -> None:
    shown = _text(site / "rules" / "index.html")
    assert sorted(re.findall(r"^(ND\d{3})$", shown, re.MULTILINE)) == [r.code for r in RULES]


def test_nothing_is_asked_of_another_server(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|iframe)[^>]*src="https?:', text), page
        assert not re.search(r'<link[^>]*(?:stylesheet|preconnect)[^>]*href="https?:', text), page


@pytest.mark.parametrize("path", WRITTEN, ids=_name)
def test_links_lead_to_files(path: Path) -> None:
    text = CODE.sub("", path.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        file, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (path.parent / file).resolve() if file else path
        if DOCS in path.parents and target.relative_to(DOCS).as_posix() in MADE:
            continue
        assert target.is_file(), link
        if anchor:
            assert anchor in _anchors(target), link


def _anchors(path: Path) -> set[str]:
    """The anchors of the headings of a page, as the builder and GitHub make them."""
    text = CODE.sub("", path.read_text(encoding="utf-8"))
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("path", WRITTEN, ids=_name)
def test_python_in_the_text_compiles(path: Path) -> None:
    for language, code in CODE.findall(path.read_text(encoding="utf-8")):
        if language == "python":
            compile(code, str(path), "exec")


@pytest.mark.parametrize("path", WRITTEN, ids=_name)
def test_yaml_and_toml_in_the_text_are_valid(path: Path) -> None:
    for language, code in CODE.findall(path.read_text(encoding="utf-8")):
        if language == "yaml":
            assert yaml.safe_load(code)
        if language == "toml":
            assert tomllib.loads(code)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [command for command in COMMANDS if f"docs/commands/{command}.md" not in text] == []


def test_the_architecture_page_has_every_room() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = contracts["tool"]["importlinter"]["contracts"][0]["layers"]
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| (\d+) \| (.+?) \|", page, re.MULTILINE)
    floors: dict[int, set[str]] = {}
    for floor, rooms in named:
        floors.setdefault(int(floor), set()).update(re.findall(r"`(\w+)`", rooms))
    told = [floors[floor] for floor in sorted(floors)]
    assert told == [set(layer.split(" | ")) for layer in layers]


def test_the_changelog_has_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(
        rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE
    )


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=_name)
def test_files_of_the_forge_are_yaml(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_rule_that_is_shown_as_an_example_is_the_real_one() -> None:
    shown = CODE.findall((DOCS / "adding-a-rule.md").read_text(encoding="utf-8"))[0][1]
    real = (ROOT / "nanodoc/rules/data/class_imbalance.py").read_text(encoding="utf-8")
    assert shown == real, "copy the module into docs/adding-a-rule.md"
