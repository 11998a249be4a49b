"""The parser of pastes: never raises, and reads back what Python's own traceback module writes."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanodoc.explain.answer import answer
from nanodoc.explain.paste import parse
from nanodoc.report.explained import document, render

PIECES = st.sampled_from(
    [
        "Traceback (most recent call last):\n",
        "Original Traceback (most recent call last):\n",
        "  + Exception Group Traceback (most recent call last):\n",
        '  File "a.py", line 3, in f\n',
        "    return g(x)\n",
        "           ^^^^\n",
        "RuntimeError: index out of range in self\n",
        "ValueError\n",
        "\nDuring handling of the above exception, another exception occurred:\n\n",
        "\nThe above exception was the direct cause of the following exception:\n\n",
        "-- Process 1 terminated with the following error:\n",
        "----> 3 out = model(x)\n",
        "Cell In[3], line 5\n",
        "File ~/x.py:12, in f(x)\n",
        "╭─── Traceback (most recent call last) ───╮\n",
        "│ /home/me/a.py:4 in f │\n",
        "│ ❱ 4 g() │\n",
        "╰──╯\n",
        "[rank1]: ",
        "2024-05-01 12:00:01 ",
        "ERROR:root:",
        "x.py:3: UserWarning: careful\n  code\n",
        "    +---------------- 1 ----------------\n",
        "\x1b[31m",
        "\r",
        "\n",
    ]
)


@pytest.mark.slow
@given(st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=30).map("".join))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_it_raise(text: str) -> None:
    found = answer(text)
    shown = render(found)
    assert all(ch.isprintable() or ch in "\n\t" for ch in shown)
    assert document(found)["schema"] == 1


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True)
messages = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
sources = st.from_regex(r"[a-z]{1,5} = [a-z]{1,5}\([a-z0-9]{1,4}\)", fullmatch=True)
places = st.tuples(
    st.from_regex(r"/home/[a-z]{1,8}/[a-z_]{1,8}\.py", fullmatch=True),
    st.integers(1, 99999),
    names,
    sources,
)
links = st.tuples(
    st.sampled_from([RuntimeError, ValueError, KeyError, StopIteration]),
    messages,
    st.lists(places, min_size=1, max_size=4),
)


def _formatted(error: BaseException, frames: list[tuple[str, int, str, str]]) -> str:
    summary = traceback.StackSummary.from_list(
        [traceback.FrameSummary(f, n, name, line=code) for f, n, name, code in frames]
    )
    return "".join(
        [
            "Traceback (most recent call last):\n",
            *summary.format(),
            *traceback.format_exception_only(error),
        ]
    )


@pytest.mark.slow
@given(st.lists(links, min_size=1, max_size=3), st.sampled_from(["cause", "context"]))
@settings(max_examples=150, deadline=None)
def test_what_python_formats_is_read_back(
    chain: list[tuple[type[Exception], str, list[tuple[str, int, str, str]]]], link: str
) -> None:
    between = {
        "cause": "\nThe above exception was the direct cause of the following exception:\n\n",
        "context": "\nDuring handling of the above exception, another exception occurred:\n\n",
    }[link]
    text = between.join(_formatted(kind(message), frames) for kind, message, frames in chain)
    (found,) = parse(text).chains
    assert len(found.raised) == len(chain)
    for one, (kind, message, frames) in zip(found.raised, chain, strict=True):
        assert one.type == kind.__name__
        assert one.message == str(kind(message))
        assert [
            (frame.file, frame.line, frame.function, frame.code) for frame in one.frames
        ] == _folded(frames)


def _folded(frames: list[tuple[str, int, str, str]]) -> list[tuple[str, int, str, str]]:
    """Python writes a frame that repeats three times, and says how often the rest was left out."""
    shown: list[tuple[str, int, str, str]] = []
    for frame in frames:
        if [before[:3] for before in shown[-3:]] != [frame[:3]] * 3:
            shown.append(frame)
    return shown


def test_a_message_that_is_the_name_of_a_level() -> None:
    text = _formatted(RuntimeError("INFO"), [("/home/a/b.py", 1, "f", "a = b(c)")])
    ((found,),) = [chain.raised for chain in parse(text).chains]
    assert (found.type, found.message) == ("RuntimeError", "INFO")
