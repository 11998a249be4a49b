"""How `scripts/mutate` judges findings, what it keeps of sealed scripts, and when harm is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import realcode
from benchmarks.mutations.generate import drawn, stored
from benchmarks.mutations.judge import judged
from benchmarks.mutations.kept import Kept, digest
from benchmarks.mutations.operators import KINDS, OPERATORS
from benchmarks.mutations.plain import Ended, Healthy, Plain
from benchmarks.mutations.score import observed, rates, table
from benchmarks.mutations.source import Mutation
from benchmarks.mutations.subjects import Layouts, Mutant, Subject, is_sealed, subjects

MUTATION = Mutation("pass\n", 7, frozenset({6, 7, 8}))
OPEN, SEALED = "forecast", "distill"


def _mutant(script: str = OPEN) -> Mutant:
    return Mutant(
        script=script,
        file="train.py",
        operator="never-cleared",
        kind="loop",
        site=0,
        line=7,
        outcome="worse",
        healthy=1.0,
        spread=0.1,
        metric=2.0,
        exception="",
        text="0",
    )


def _finding(
    line: int, title: str, severity: str = "critical", file: str = "train.py"
) -> dict[str, Any]:
    place = {"location": {"file": file, "line": line}}
    return {
        "code": "ND999",
        "severity": severity,
        "title": title,
        "explanation": "Every step applies all earlier ones. The loss does not fall.",
        "culprit": place,
    }


CAUSE, SYMPTOM = "gradients accumulate", "the loss does not fall"


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([_finding(7, CAUSE)], "right"),
        ([_finding(8, CAUSE, "warning")], "right"),  # beside a removed statement
        ([_finding(7, SYMPTOM)], "half"),
        ([_finding(30, CAUSE)], "half"),
        ([_finding(7, CAUSE, file="model.py")], "half"),
        ([_finding(30, SYMPTOM)], "wrong"),
        ([_finding(30, SYMPTOM), _finding(7, CAUSE)], "wrong"),  # the first one counts
        ([_finding(30, SYMPTOM, "info"), _finding(7, CAUSE)], "right"),  # of those that are loud
        ([_finding(7, CAUSE, "info")], "missed"),
        ([], "missed"),
    ],
)
def test_the_first_loud_finding_is_judged(findings: list[dict[str, Any]], expected: str) -> None:
    assert judged(_mutant(), MUTATION, findings) == expected


def test_a_cause_is_named_within_a_sentence() -> None:
    far = _finding(7, "gradients are large. The loss is high. Layers are missing")
    assert judged(_mutant(), MUTATION, [far]) == "half"


def test_the_sealed_half_is_stable() -> None:
    assert [is_sealed(name) for name in (OPEN, "ppo", "mnist", SEALED, "vae", "gcn")] == [
        *(False, False, False, True, False, True)
    ]


def _subject(name: str) -> Subject:
    script = realcode.Script(name=name, folder="mutations", command="train.py")
    return Subject(script=script, files=("train.py",))


def test_reports_of_sealed_mutants_are_not_kept() -> None:
    found = [_finding(7, CAUSE)]
    kept = observed(_subject(SEALED), _mutant(SEALED), MUTATION, found)
    assert kept.keys() == {"class", "digest"}
    assert kept["class"] == "right"
    assert CAUSE not in str(kept)
    other = observed(_subject(SEALED), _mutant(SEALED), MUTATION, [_finding(8, CAUSE)])
    assert other["digest"] != kept["digest"]  # a difference shows
    assert observed(_subject(OPEN), _mutant(), MUTATION, found)["findings"] == found


def test_the_table_tells_the_halves_apart() -> None:
    rows = [
        {"sealed": sealed, "class": one, "kind": "loop", "operator": "never-cleared"}
        for sealed, one in ((False, "right"), (False, "missed"), (True, "missed"))
    ]
    score = {
        "mutants": rows,
        "healthy scripts": 2,
        "first steps": {"one": "bitwise", "two": "replay of step 0 not the same"},
        "false alarms": [{"script": "ppo", "findings": ["ND1 ppo.py:3"]}],
        "left out": [],
        "gone": [],
    }
    text = table(score)
    assert rates(rows)["right"] == pytest.approx(100 / 3)
    assert "open − sealed: right +50.0, missed -50.0 percentage points" in text
    assert "false alarms: 1 of 2 healthy scripts" in text
    assert "ppo: ND1 ppo.py:3" in text
    assert "run again: bitwise 1, rounding 0, other 1" in text


def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: list[Ended]) -> Plain:
    plain = Plain(Layouts(tmp_path, tmp_path), tmp_path)
    monkeypatch.setattr(plain, "run", lambda *args, **named: ends.pop(0))
    return plain


def _ended(metric: float | None = None, exception: str = "", before: bool = False) -> Ended:
    return Ended(0, metric, exception, before, 1.0)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([_ended(0.2)], "worse"),
        ([_ended(0.85)], ""),  # within the spread
        ([_ended(0.65), _ended(0.9), _ended(0.9)], ""),  # near the border: the median decides
        ([_ended(0.65), _ended(0.6), _ended(0.9)], "worse"),
        ([_ended(float("nan"))], "nan"),
        ([_ended(None, "RuntimeError")], "exception"),
        ([_ended(None, "", True)], ""),  # it raised before any training
        ([_ended(None)], ""),
    ],
)
def test_a_mutant_counts_where_plain_python_shows_harm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: list[Ended], expected: str
) -> None:
    healthy = Healthy((0.8, 0.85, 0.9, 0.95, 1.0), 1.0)  # mean 0.9, range 0.2
    plain = _plain(monkeypatch, tmp_path, list(ends))
    assert plain.harm(_subject(OPEN), healthy, "train.py", "")[0] == expected


def test_sites_are_drawn_round_the_kinds() -> None:
    texts = {"train.py": "loss = F.mse_loss(out, y)\nloss.backward()\nopt.step()\n" * 3}
    first = [OPERATORS[name].kind for _, name, _, _ in drawn(_subject(OPEN), texts)][:3]
    assert sorted(first) == sorted({*first})
    assert list(drawn(_subject(OPEN), texts)) == list(drawn(_subject(OPEN), texts))


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "some")
    assert kept.get(digest("a", 1)) is None
    kept.put(digest("a", 1), {"b": 2})
    assert Kept(tmp_path / "some").get(digest("a", 1)) == {"b": 2}


def test_stored_mutants_are_of_known_scripts_and_operators() -> None:
    names = {subject.name for subject in subjects()}
    mutants = stored()
    assert {mutant.script for mutant in mutants} <= names
    assert all(OPERATORS[mutant.operator].kind == mutant.kind for mutant in mutants)
    most = max(sum(mutant.kind == kind for mutant in mutants) for kind in KINDS)
    assert most <= len(mutants) / 2
