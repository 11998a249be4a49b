"""What `scripts/oracle` compares and draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import oracle
from benchmarks.oracle import Case, differences, observed, sample

A, B = "ND101 critical a.py:3 one", "ND101 critical a.py:4 one"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([f"script x\t{A}"], [f"script x\t{A}"], []),
        ([f"script x\t{A}"], ["script x\tno finding"], [f"went      script x: {A}"]),
        (["script x\tno finding"], [f"script x\t{A}"], [f"appeared  script x: {A}"]),
        ([f"script x\t{A}"], [f"script x\t{B}"], [f"moved     script x: {A}  →  {B}"]),
        (
            [f"script x\t{A}", f"script x\t{A}"],
            [f"script x\t{A}"],
            [f"went      script x: {A}"],
        ),
        (["script x\tsealed 12"], ["script x\tsealed 34"], [
            "moved     script x: sealed 12  →  sealed 34"
        ]),
        (
            [f"script x\t{A}"],
            [f"script y\t{A}"],
            ["not compared: 1 cases are only in the first, 1 in the second"],
        ),
    ],
)  # fmt: skip
def test_differences(before: list[str], after: list[str], told: list[str]) -> None:
    assert differences(before, after) == told


def test_a_sample_is_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "_SAMPLE", {"script": 2, "patient": 1})
    cases = [Case("script", str(n), "", list) for n in range(5)]
    cases += [Case("patient", str(n), "", list) for n in range(5)]
    drawn = sample(cases)
    assert [case.sort for case in drawn] == ["script", "script", "patient"]
    assert {case.line for case in drawn} == {case.line for case in sample(reversed(cases))}


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    called = []

    def found() -> list[str]:
        called.append(1)
        return [A]

    cases = [Case("script", "x", "text", found), Case("script", "w", "", lambda: [B])]
    lines = observed(cases, tmp_path, 1)
    assert lines == [f"script w\t{B}", f"script x\t{A}"]
    assert observed(cases, tmp_path, 1) == lines
    assert len(called) == 1
    observed([Case("script", "x", "another text", found)], tmp_path, 1)
    assert len(called) == 2
