"""A library's trainer takes the logarithm of what the user's module returns, which are logarithms
already (skorch does so for NLLLoss). No line of the user's runs there, and the finding stood in the
library's file, with a diff of it."""

from __future__ import annotations

from pathlib import Path

import torch

from nanodoc.diagnosis.finding import Culprit, Finding, Fix
from nanodoc.facts.ops import Birth, OpFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.pipeline.users_line import at_users_lines
from nanodoc.recipe.build_facts import BuildFacts

LIBRARY = str(Path(torch.__file__).parents[1] / "somewhere" / "trainer.py")


def _place(file: str, line: int, code: str) -> SourceSpan:
    return SourceSpan(
        file=file,
        line=line,
        end_line=line,
        column=1,
        end_column=1 + len(code),
        function="forward",
        code=code,
        indent=0,
    )


def _op(index: int, name: str, place: SourceSpan) -> OpFacts:
    return OpFacts(
        index=index, op=name, phase="forward", module=None, module_type=None, location=place
    )


def _finding(place: SourceSpan) -> Finding:
    return Finding(
        code="ND201",
        name="domain-error",
        severity="critical",
        confidence=0.9,
        title="log of a value outside its domain",
        explanation="log needs x > 0.",
        culprit=Culprit(kind="op", op="log", location=place),
        phase="forward",
        step=0,
        fixes=(Fix(title="keep it inside", patch="torch.log(x.clamp_min(1e-12))"),),
    )


def test_the_line_that_gives_it_the_values(tmp_path: Path) -> None:
    own = tmp_path / "train.py"
    own.write_text("scores = body(x).log_softmax(1)\n")
    there = _place(LIBRARY, 154, "torch.log(given + eps)")
    mine = _place(str(own), 1, "body(x).log_softmax(1)")
    between = _op(1, "add", there)
    birth = Birth(
        op=_op(2, "log", there),
        kind="nan",
        phase="forward",
        upstream=(between, _op(0, "log_softmax", mine)),
    )
    [told] = at_users_lines((_finding(there),), BuildFacts(), [birth])
    assert told.culprit.location == mine
    assert "trainer.py:154" in told.explanation
    assert told.fixes[0].patch is None  # the library is not the user's to mend
    # where nothing of the user's stands behind it, the library's line stays
    [left] = at_users_lines((_finding(there),), BuildFacts(), [])
    assert left.culprit.location == there
