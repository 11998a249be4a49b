"""Where a key of the recipe is written."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nanodoc.recipe.lines import line_of_key

FILE = """\
def other():
    return {"amp": 1}


def build():
    größe = {"é": 2}
    return {"model": größe, "amp": {"dtype": "float16",
                                     "scaler": True}, "data": []}


def keyword():
    return Recipe(model=1, amp={"dtype": "bfloat16"})
"""


def test_the_pair_in_the_function(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FILE, encoding="utf-8")
    span = line_of_key(tmp_path / "train.py", "build", "amp", "train.py")
    assert span is not None
    assert (span.line, span.end_line) == (7, 8)
    lines = FILE.splitlines()
    assert lines[6][span.column - 1 :].startswith('"amp": {')
    assert lines[7][: span.end_column - 1].endswith("True}")
    keyword = line_of_key(tmp_path / "train.py", "keyword", "amp", "train.py")
    assert keyword is not None
    assert keyword.expression == 'amp={"dtype": "bfloat16"}'


def test_no_telling_is_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FILE, encoding="utf-8")
    assert line_of_key(tmp_path / "train.py", "absent", "amp", "train.py") is None  # three places
    assert line_of_key(tmp_path / "train.py", "build", "scheduler", "train.py") is None
    assert line_of_key(tmp_path / "missing.py", "build", "amp", "train.py") is None


@given(st.text(max_size=80))
def test_any_text_can_be_read(tmp_path_factory: object, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.py"  # type: ignore[attr-defined]
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    line_of_key(path, "build", "amp", "any.py")
