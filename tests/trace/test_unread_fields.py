"""Fields of what a function takes apart, and which of them nobody reads."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from nanodoc.trace.files import line_span
from nanodoc.trace.unread import unread_fields

_TUPLE = 'Step = namedtuple("Step", ("state", "reward", "done"))'
_CLASS = """class Step(NamedTuple):
    state: Tensor
    reward: Tensor
    done: Tensor"""
_READS_TWO = """
def learn(batch):
    return net(batch.state) + batch.reward  # at
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (_TUPLE + _READS_TWO, True),
        (_CLASS + _READS_TWO, True),
        ('Step = namedtuple("Step", "state reward done")' + _READS_TWO, True),
        (_TUPLE + _READS_TWO + "\nfinished = step.done", False),
        (_TUPLE + _READS_TWO + "\nfinished = getattr(step, 'done')", False),
        # another class than the one that is taken apart there
        (_TUPLE + "\ndef learn(x):\n    return x.mean() + x.reward  # at\n", False),
        (_TUPLE.replace('"done"', '"age"') + _READS_TWO, False),
    ],
)
def test_a_field_that_nobody_reads(source: str, found: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(source))
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "# at" in text)
    place = line_span(str(file), line, "learn")
    assert ("done" in unread_fields(place, re.compile("done"))) == found
