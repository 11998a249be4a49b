"""What the rules make of facts that no test can bring about on one machine: memory that runs out,
ranks on other hosts, networks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nanodoc.diagnosis.finding import Culprit, Finding
from nanodoc.diagnosis.ranking import rank
from nanodoc.facts.death import DeathFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.facts.ranks import CLEAN, ENDED, HUNG, LOST, SICK, WELL, RankOutcome
from nanodoc.facts.source import SourceSpan
from nanodoc.report.merge import merge
from nanodoc.report.report import Report, RunInfo
from nanodoc.rules.catalogue import claims, superseded

GIB = 1 << 30
LINE = SourceSpan(
    file="train.py", line=3, end_line=3, column=1, end_column=5, function="f", code="f(x)"
)


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    return rank(claims(evidence))


@pytest.mark.parametrize(
    ("death", "code"),
    [
        (
            DeathFacts(
                signal="SIGKILL",
                step=3,
                phase="forward",
                killed_for_memory=True,
                peak_memory=2 * GIB,
                memory_limit=16 * GIB,
            ),
            "ND704",
        ),
        (
            DeathFacts(
                signal="SIGKILL",
                step=3,
                phase="forward",
                peak_memory=15 * GIB,
                memory_limit=16 * GIB,
            ),
            "ND704",
        ),
        (
            DeathFacts(
                signal="SIGKILL",
                step=3,
                phase="forward",
                peak_memory=2 * GIB,
                memory_limit=16 * GIB,
            ),
            "ND711",
        ),
        (
            DeathFacts(
                signal="SIGSEGV",
                step=3,
                phase="forward",
                peak_memory=15 * GIB,
                memory_limit=16 * GIB,
            ),
            "ND711",
        ),
        (DeathFacts(silent_for=30.0, step=3, phase="data"), "ND712"),
    ],
)
def test_why_a_process_is_gone(death: DeathFacts, code: str) -> None:
    (finding,) = findings(Evidence(death=death))
    assert (finding.code, finding.step) == (code, 3)


def test_a_line_seen_twice_is_surer_than_one_seen_once_than_none() -> None:
    death = DeathFacts(signal="SIGSEGV", step=3, phase="forward")
    none, once = death, replace(death, frames=(LINE,))
    twice, never = replace(once, again=True), replace(once, again=False)
    sure = [findings(Evidence(death=one))[0].confidence for one in (none, never, once, twice)]
    assert sure[0] < sure[2] < sure[3]
    assert sure[1] < sure[2]


def test_a_cublas_status_is_no_assertion_and_no_want_of_memory() -> None:
    message = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    (finding,) = findings(
        Evidence(
            failure=Failure(
                type="RuntimeError",
                message=message,
                phase="forward",
                frames=(LINE,),
                raised_by_torch=True,
                torch_function="linear",
            )
        )
    )
    assert (finding.code, finding.culprit.location) == ("ND702", LINE)
    assert "CUDA_LAUNCH_BLOCKING=1" in finding.fixes[0].title


def outcome(number: int, ended: str, **more: object) -> RankOutcome:
    return RankOutcome(
        rank=number, ended=ended, **{"steps": 3, "step": 3, "phase": "forward", **more}
    )  # type: ignore[arg-type]  # by name


def test_a_trouble_of_all_ranks_is_no_question_of_ranks() -> None:
    assert not findings(Evidence(ranks=(outcome(0, SICK, why="nan"), outcome(1, SICK, why="nan"))))
    assert not findings(Evidence(ranks=(outcome(0, WELL), outcome(1, WELL))))


def test_the_first_rank_by_step_is_named() -> None:
    (finding,) = findings(
        Evidence(
            ranks=(outcome(0, CLEAN, step=5), outcome(1, SICK, step=5), outcome(2, SICK, step=4))
        )
    )
    assert (finding.code, finding.rank, finding.step) == ("ND801", 2, 4)
    assert finding.title == "ranks 1, 2 of 3 failed, rank 0 did not"


def test_a_rank_that_was_never_heard_of() -> None:
    (finding,) = findings(
        Evidence(
            ranks=(
                outcome(0, ENDED),
                outcome(1, LOST, step=None, phase="", why="it never reported"),
            )
        )
    )
    assert (finding.code, finding.rank, finding.culprit.kind) == ("ND801", 1, "environment")


def test_ranks_that_all_stand_still_at_one_place() -> None:
    (finding,) = findings(Evidence(ranks=(outcome(0, HUNG), outcome(1, HUNG))))
    assert (finding.code, finding.title) == ("ND804", "all ranks are stuck at the same place")
    (finding,) = findings(
        Evidence(ranks=(outcome(0, HUNG, waits=True), outcome(1, HUNG, location=LINE)))
    )
    assert (finding.code, finding.rank) == ("ND804", 1)


@pytest.mark.parametrize(
    "change",
    [{"wrapped": False}, {"steps": 2}, {"fingerprints": ()}, {"fingerprints": (("other", "b"),)}],
)
def test_replicas_are_compared_only_where_they_are_meant_to_be_alike(
    change: dict[str, object],
) -> None:
    one = outcome(0, WELL, fingerprints=(("w", "a"),), wrapped=True)
    other = replace(one, rank=1, fingerprints=(("w", "b"),))
    assert [finding.code for finding in findings(Evidence(ranks=(one, other)))] == ["ND802"]
    assert not findings(Evidence(ranks=(one, replace(other, **change))))  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            "The server socket has failed to listen on any local network address. port: 29500, "
            "useIpv6: false, code: -98, name: EADDRINUSE",
            "ND805",
        ),
        (
            "Error initializing torch.distributed using env:// rendezvous: environment variable "
            "RANK expected, but not set",
            "ND805",
        ),
        ("Timed out after 31 seconds waiting for clients. 1/2 clients joined.", "ND805"),
        ("my own words: nothing of that kind", "ND709"),
    ],
)
def test_ranks_that_do_not_find_each_other(message: str, code: str) -> None:
    failure = Failure(
        type="RuntimeError",
        message=message,
        phase="setup",
        frames=(LINE,),
        raised_by_torch=True,
        torch_function=None,
        origin="distributed/rendezvous.py",
    )
    assert [finding.code for finding in findings(Evidence(failure=failure))] == [code]


def test_the_merged_report_tells_each_cause_once() -> None:
    info = RunInfo(
        entrypoint="t:b",
        command="run",
        config={},
        device="cpu",
        amp=None,
        seed=None,
        steps_requested=5,
        steps_run=3,
        torch="2",
        python="3",
    )
    cause = Finding(
        code="ND101",
        name="non-finite-input",
        severity="critical",
        confidence=0.9,
        title="t",
        explanation="",
        culprit=Culprit(kind="data"),
        phase="data",
        step=3,
    )
    effect = replace(cause, code="ND901", name="not-reproduced")
    local, given = (
        Report(nanodoc="0", run=info, findings=(cause,)),
        Report(nanodoc="0", run=info, findings=(effect,)),
    )
    outcomes = (outcome(0, CLEAN), outcome(1, SICK), outcome(2, SICK))
    across = findings(Evidence(ranks=outcomes))
    merged = merge(
        [(outcomes[0], given), (outcomes[1], local), (outcomes[2], local)],
        across,
        superseded(across),
    )
    assert [(one.code, one.rank) for one in merged.findings] == [("ND101", 1), ("ND801", 1)]
    assert ("ranks", "1, 2 of 3") in merged.findings[0].evidence
    assert (merged.run.rank, merged.run.world_size) == (1, 3)
