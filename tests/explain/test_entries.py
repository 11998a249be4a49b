"""The knowledge base: every entry explains its own message, as the installed torch words it
wherever a CPU can raise it."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch

from nanodoc.cli.app import app
from nanodoc.explain.answer import answer
from nanodoc.explain.knowledge import Entry, entries, explained
from nanodoc.explain.knowledge.base import read
from nanodoc.rules.catalogue import RULES
from tests.explain import (
    raised_by_loading,
    raised_by_modules,
    raised_by_programs,
    raised_by_tensors,
    raised_by_training,
    raised_by_variants,
    warned,
)
from tests.explain.recorded import SOURCES

# Rules and commands that entries name and that are not there yet; to be emptied as they come.


def _raising(module: ModuleType) -> dict[str, Callable[[], None]]:
    return {name: function for name, function in vars(module).items() if name.startswith("raises_")}


RAISING = {
    name: function
    for module in (
        raised_by_tensors,
        raised_by_training,
        raised_by_modules,
        raised_by_loading,
        raised_by_variants,
        raised_by_programs,
        warned,
    )
    for name, function in _raising(module).items()
}
BY_ID = {entry.id: entry for entry in entries()}


def _id(name: str) -> str:
    """`raises_index_out_of_bounds__gather` is another way to the entry index-out-of-bounds."""
    return name.removeprefix("raises_").partition("__")[0].replace("_", "-")


@pytest.fixture
def _every_time() -> Iterator[None]:
    """Some warnings are given once in a process, and a test before this one may have had them."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(before)


@pytest.mark.parametrize("name", RAISING)
@pytest.mark.usefixtures("_every_time")
# of a machine with one core
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_what_torch_raises_is_explained(name: str) -> None:
    with pytest.raises(BaseException) as raised:  # each ends with an error of its own type
        RAISING[name]()
    torch._dynamo.reset()
    text = "".join(traceback.format_exception(raised.type, raised.value, raised.tb))
    found = answer(text)
    assert found.explanation is not None, text
    assert found.explanation.id == _id(name), text
    assert not re.search(r"\{[a-z]+\}", found.explanation.title + found.explanation.means)


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.id)
def test_an_example_is_explained_by_its_own_entry(entry: Entry) -> None:
    for example in entry.examples:
        found = explained(example)
        assert found is not None
        assert found.id == entry.id
        whole = answer(example).explanation
        assert whole is not None
        assert whole.id == entry.id


def test_every_message_was_raised_here_or_has_a_source() -> None:
    raised = {_id(name) for name in RAISING}
    assert raised <= set(BY_ID)
    assert set(BY_ID) - raised == set(SOURCES)


def test_the_rules_and_commands_that_are_named_exist() -> None:
    codes = {rule.code for rule in RULES}
    commands = {
        command.callback.__name__.replace("_", "-")
        for command in app.registered_commands
        if command.callback
    }
    for entry in entries():
        assert entry.rule is None or entry.rule in codes, entry.id
        for command in re.findall(r"nanodoc ([a-z-]+)", entry.next):
            assert command in commands, entry.id


def test_advice_that_hides_bugs_is_not_given() -> None:
    for entry in entries():
        said = " ".join((entry.fix, *entry.causes)).lower()
        assert "retain_graph=true" not in said
        assert "loss.requires_grad" not in said
        assert "variable(loss" not in said
        assert "kmp_duplicate_lib_ok=true" not in said


def test_titles_are_headlines() -> None:
    for entry in entries():
        assert not entry.title.endswith("."), entry.id
        assert "\n" not in entry.title.strip(), entry.id
        assert len(entry.title) <= 110, entry.id


@pytest.mark.parametrize(
    "text",
    [
        *(character * 100_000 for character in ("a", "1", "[", '"', " ", "-", "a\n")),
        *(
            start * 5_000
            for start in (
                "1x",
                "module.",
                "(1, ",
                "'NoneType' object has no attribute '",
                "shape '[",
                "Function 'A' returned ",
            )
        ),
        *(
            start * 5_000
            for start in (
                "exit code: ",
                "Missing key(s) in state_dict: ",
                "torch.Size([1, ",
                "Loss.cu:1: ",
                "Caught a in ",
            )
        ),
        *(
            "RuntimeError: " + start * 5_000
            for start in (
                "Given groups=1, weight of size [",
                "Expected parameter a (Tensor of shape (",
            )
        ),
    ],
    ids=lambda text: text[:12].strip() or "blank",
)
def test_no_pattern_runs_away(text: str) -> None:
    # a pattern that backtracks without bound would take hours here, not the seconds that all of
    # them may take
    start = time.perf_counter()
    explained(text)
    answer(text)
    assert time.perf_counter() - start < 20


def test_an_entry_that_is_wrong_is_named() -> None:
    good = (
        "- {id: some-id, patterns: [x], title: t, means: m, causes: [c], next: n, fix: f, rule: "
        "null, example: x}"
    )
    assert read(good, "f.yaml")[0].id == "some-id"
    for change, said in (
        (("some-id", "Some Id"), "kebab-case"),
        (("[x]", "['(']"), "bad pattern"),
        (("rule: null", "rule: E501"), "rule must be a code"),
        (("rule: null", "rule: null, larger: a < b"), "larger must read"),
        (("causes: [c]", "causes: []"), "causes must be a list"),
        (("title: t, ", ""), r"missing \['title'\]"),
        (("fix: f", "fix: f, fux: g"), r"unknown \['fux'\]"),
        (("[x], title: t", r"['(?P<n>\d)', y], title: 't {n}'"), r"\{n\} is not in every pattern"),
        (
            (
                "[x], title: t, means: m, causes: [c], next: n",
                r"['(?P<n>\d)'], title: t, means: m, causes: [c], next: 'rm {n}'",
            ),
            "next must hold",
        ),
    ):
        with pytest.raises(ValueError, match=rf"f.yaml, entry 1.*{said}"):
            read(good.replace(*change), "f.yaml")


def test_only_the_patterns_own_groups_are_filled_in() -> None:
    found = explained(
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x10 and 20x3) {0.__class__} "
        "{rows} %s $rows"
    )
    assert found is not None
    assert "4 rows" in found.means
    assert "__class__" not in found.means
