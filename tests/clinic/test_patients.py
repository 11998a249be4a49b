"""Every rule has a patient that it diagnoses at rank 1, where and why; every healthy twin gets no
finding at all, neither from the rule nor, as its neighbour, from another patient's.

The patients run with meaningless names: what is measured does not depend on what things are called.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len

from nanodoc import Recipe
from nanodoc.clinic.catalogue import FAMILIES, PATIENTS
from nanodoc.clinic.patient import Patient
from nanodoc.config import Config
from nanodoc.diagnosis.rule import Rule
from nanodoc.pipeline.run import run_training
from nanodoc.pipeline.supervised import supervised
from nanodoc.progress import Progress
from nanodoc.report.finding import MOST_LINES, finding_text
from nanodoc.report.report import Report
from nanodoc.report.terminal import Look, render
from nanodoc.rules.catalogue import RULES
from nanodoc.supervise.job import Job
from tests.renamed import renamed

BY_NAME = {patient.name: patient for patient in PATIENTS}

RANKS = "several processes under a launcher"
WITHOUT_PATIENT = {
    "ND701": (
        "a kernel's assertion needs an accelerator, here a simulated one",
        "accelerator/test_errors.py",
    ),
    "ND702": ("cuBLAS needs CUDA", "rules/test_deaths_and_ranks.py"),
    "ND801": (RANKS, "supervise/test_ranks.py"),
    "ND802": (RANKS, "supervise/test_ranks.py"),
    "ND803": (RANKS, "supervise/test_ranks.py"),
    "ND804": (RANKS, "supervise/test_ranks.py"),
    "ND805": ("a network between two hosts that fails", "rules/test_deaths_and_ranks.py"),
    "ND128": ("the validation of a script", "rules/test_split_overlap.py"),
    "ND176": ("the validation of a script", "script/test_given_inputs.py"),
    "ND135": ("the validation of a script", "rules/test_validation_scale.py"),
    "ND642": ("the validation of a script", "rules/test_asides.py"),
    "ND643": ("weights that a script puts back", "rules/test_asides.py"),
    "ND173": ("rollouts that a script fills", "rules/test_overwritten_store.py"),
    "ND657": ("averages that a script keeps by a library", "rules/test_averaged_weights.py"),
    "ND656": ("objectives of gpytorch", "rules/test_misweighed_data.py"),
    "ND806": (RANKS, "supervise/test_ranks.py"),
    "ND808": (RANKS, "supervise/test_ranks.py"),
    "ND809": (RANKS, "supervise/test_sharded.py"),
    "ND810": (RANKS, "supervise/test_rank_gradients.py"),
    "ND813": (RANKS, "supervise/test_rank_gradients.py"),
    "ND812": (RANKS, "supervise/test_rank_gradients.py"),
    "ND811": (RANKS, "supervise/test_ranks.py"),
}
"""Rules that no training of one process on a CPU can bring about: why, and which test does."""


BY_THEIR_NAMES = {
    "plateau-mode": "an accuracy is known by its name: only an info",
    "slow-starter": "of several lines that make a schedule, a name tells which is to blame",
    "noisy-scans": "its loader's processes import the patient's module",
}
"""Patients that keep their names, and why."""


@cache
def nameless(file: str) -> str:
    """A copy of a patient's file with the same lines, in which the names mean nothing."""
    source = Path(file).read_text(encoding="utf-8")
    builds = re.findall(r"(?m)^(?:def )?((?:sick|healthy)\w*)", source)
    keys = [field.name for field in fields(Recipe)]
    parameters = [one.parameter.split(".") for one in PATIENTS if f"{one.file}.py" in file]
    copy = Path(tempfile.mkdtemp(prefix="nameless-")) / Path(file).name
    copy.write_text(renamed(source, (*builds, *keys, *chain(*parameters))), encoding="utf-8")
    atexit.register(shutil.rmtree, copy.parent, ignore_errors=True)
    return str(copy)


def line_of_patient(patient: Patient, number: int) -> str:
    """As the patient's file has it."""
    return Path(patient.entrypoint().rpartition(":")[0]).read_text("utf-8").splitlines()[number - 1]


@cache
def report_on(name: str, *, healthy: bool = False) -> Report:
    """What is found, once for each worker: it is asked for by several tests."""
    patient = BY_NAME[name]
    config = replace(Config(device="cpu"), **patient.options)
    entrypoint = patient.entrypoint(healthy=healthy)
    if name not in BY_THEIR_NAMES:
        file, _, build = entrypoint.rpartition(":")
        entrypoint = f"{nameless(file)}:{build}"
    if patient.dies and not healthy:
        return supervised(Job(command="run", target=entrypoint, config=config), Progress())
    return run_training(entrypoint, config)


def neighbour(patient: Patient) -> Patient:
    """The next patient of its family, of another rule."""
    (family,) = (one for one in FAMILIES if patient in one)
    at = family.index(patient)
    others = (*family[at + 1 :], *family[:at])
    return next(one for one in others if one.expect != patient.expect)


def assert_readable(report: Report) -> None:
    """No line is wider than the terminal, and no finding longer than a reader takes in."""
    for width in (60, 80):
        text = render(report, Look(width=width))
        assert max(map(cell_len, text.splitlines())) <= width, text
    for finding in report.findings:
        block = finding_text(finding, "nanodoc-step0.pt", width=80)
        assert len(block.plain.splitlines()) <= MOST_LINES, block.plain
        assert f"[{finding.code}]" in block.plain
        if finding.fixes:
            assert "help (" in block.plain


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.slow) if BY_NAME[name].dies else name
        for name in sorted(BY_NAME)  # a slow one starts a process of its own
    ]
)
def patient(request: pytest.FixtureRequest) -> Iterator[Patient]:
    if (needs := BY_NAME[request.param].needs) is not None:
        pytest.importorskip(needs)
    yield BY_NAME[request.param]
    torch.set_grad_enabled(True)  # one of them switches gradients off for good


@pytest.mark.filterwarnings(
    "ignore:.*degrees of freedom.*:UserWarning",
    "ignore:.*enable_nested_tensor.*:UserWarning",
    "ignore:.*to a scalar may lead.*:UserWarning",
)
def test_the_cause_comes_first(patient: Patient) -> None:
    report = report_on(patient.name)
    assert report.findings, patient.story
    assert_readable(report)
    first = report.findings[0]
    assert first.name == patient.expect
    assert first.severity == patient.severity
    if patient.line:
        assert first.culprit.location is not None
        assert patient.line in line_of_patient(patient, first.culprit.location.line)
    if patient.parameter:
        assert first.culprit.parameter == patient.parameter
    assert first.confidence >= patient.sure
    # a process that is gone is run again by another, and what no replay finds says so itself
    if not patient.dies and first.name != "not-reproduced":
        assert first.step is None or report.run.reproduced in ("bitwise", "not_run")


def test_the_healthy_twin_is_left_alone(patient: Patient) -> None:
    """By every rule; above all by its patient's and by those of the patients before it."""
    report = report_on(patient.name, healthy=True)
    found = {finding.name for finding in report.findings}
    beside = {one.expect for one in PATIENTS if neighbour(one) is patient}
    assert patient.expect not in found
    assert not beside & found
    assert report.findings == ()
    assert report.verdict == "nothing found"


def test_names_are_unique_and_known() -> None:
    assert len(BY_NAME) == len(PATIENTS)
    assert {patient.expect for patient in PATIENTS} <= {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_has_a_patient_or_a_reason(rule: Rule) -> None:
    has_patient = any(patient.expect == rule.name for patient in PATIENTS)
    assert has_patient is not (rule.code in WITHOUT_PATIENT)


@pytest.mark.parametrize("code", WITHOUT_PATIENT)
def test_what_has_no_patient_is_tested_elsewhere(code: str) -> None:
    why, where = WITHOUT_PATIENT[code]
    assert why
    assert code in (Path(__file__).parents[1] / where).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "samples", "rows"),
    [
        ("poisoned-batch", (14,), (63,)),
        ("distance-of-twins", (2,), (50,)),
        ("log-of-softmax", (1,), (41,)),
        ("empty-set", (5,), (29,)),
        ("street-boxes", (1,), (13,)),
        ("added-token", (1,), (9,)),
    ],
)
def test_the_guilty_sample_is_named(
    name: str, samples: tuple[int, ...], rows: tuple[int, ...]
) -> None:
    culprit = report_on(name).findings[0].culprit
    assert culprit.samples == samples
    assert culprit.dataset_indices == rows
