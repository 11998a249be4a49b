"""Every patient is diagnosed at rank 1, where and why; every healthy twin gets no finding at
all."""

from __future__ import annotations

import pytest

from nanodoc.clinic.catalogue import PATIENTS, Patient
from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from nanodoc.rules.catalogue import RULES

BY_NAME = {patient.name: patient for patient in PATIENTS}


@pytest.fixture(params=sorted(BY_NAME))
def patient(request: pytest.FixtureRequest) -> Patient:
    if (needs := BY_NAME[request.param].needs) is not None:
        pytest.importorskip(needs)
    return BY_NAME[request.param]


@pytest.mark.filterwarnings(
    "ignore:.*degrees of freedom.*:UserWarning",
    "ignore:.*enable_nested_tensor.*:UserWarning",
    "ignore:.*to a scalar may lead.*:UserWarning",
)
def test_the_cause_comes_first(patient: Patient) -> None:
    report = run_training(patient.entrypoint(), Config(device="cpu"))
    assert report.findings, patient.story
    first = report.findings[0]
    assert first.name == patient.expect
    assert first.severity == patient.severity
    if patient.line:
        assert first.culprit.location is not None
        assert patient.line in first.culprit.location.code
    assert first.confidence > 0.7
    assert first.step is None or report.run.reproduced in ("bitwise", "not_run")


def test_the_healthy_twin_is_left_alone(patient: Patient) -> None:
    report = run_training(patient.entrypoint(healthy=True), Config(device="cpu"))
    assert report.findings == ()
    assert report.verdict == "healthy"


def test_names_are_unique_and_known() -> None:
    assert len(BY_NAME) == len(PATIENTS)
    assert {patient.expect for patient in PATIENTS} <= {rule.name for rule in RULES}


@pytest.mark.parametrize(
    ("name", "samples", "rows"),
    [
        ("poisoned-batch", (14,), (63,)),
        ("distance-of-twins", (2,), (50,)),
        ("log-of-softmax", (1,), (41,)),
        ("empty-set", (5,), (29,)),
    ],
)
def test_the_guilty_sample_is_named(
    name: str, samples: tuple[int, ...], rows: tuple[int, ...]
) -> None:
    culprit = run_training(BY_NAME[name].entrypoint(), Config(device="cpu")).findings[0].culprit
    assert culprit.samples == samples
    assert culprit.dataset_indices == rows
