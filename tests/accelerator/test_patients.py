"""The clinic on the simulated device: every patient's report is the CPU's but for the device's
name, every healthy twin's too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from nanodoc.clinic.catalogue import PATIENTS
from nanodoc.clinic.patient import Patient
from nanodoc.config import Config
from nanodoc.loop.brief_steps import FULL_AT_FIRST
from nanodoc.pipeline.run import run_training
from nanodoc.report.public import public_form
from tests.accelerator.device import sim

# An index out of range loses the device for the whole process (test_errors.py has processes for it).
LOSES_THE_DEVICE = {"added-token", "labels-from-one"}
# A parameter without memory cannot be moved anywhere; a network that only the step's owner holds stays where
# it is, and its memory cannot be given to one that was moved.
CANNOT_MOVE = {"meta-gain", "one-memory"}
BY_NAME = {
    patient.name: patient
    for patient in PATIENTS
    if not patient.dies and patient.name not in LOSES_THE_DEVICE | CANNOT_MOVE
}

# What these make or keep on the CPU goes with a model on the CPU only; elsewhere it raises, as it
# would on any accelerator.
MAKE_CPU_TENSORS = {
    "ferry-lines",
    "fresh-projection",
    "left-in-eval",
    "rebuilt-scores",
    "shown-patches",
    "unclipped",
}
# Its layers stay behind when the model moves: the same cause, at the same line, shows as an
# exception there.
LEFT_BEHIND = {"plain-dict"}
# Their autocast is the CPU's by name, or autocast's list of an accelerator has other ops than the
# CPU's (reciprocal runs in float32).
CPU_AUTOCAST = {
    "clipped-while-scaled",
    "no-scaler",
    "collapsing-scale",
    "autocast-ends",
    "eager-scale",
    "fixed-scale",
    "low-scale",
    "near-the-end",
    "past-the-scaler",
}
# torch computes these by other ops on any accelerator: native_dropout, a fused GRU or LSTM cell.
OTHER_OPS = {
    "dropout-overflow": {"aten.mul.Tensor": "aten.native_dropout.default"},
    "carried-state": {"aten.addmm.default": "aten.mm.default"},
}
# Sums in bfloat16 are taken in another order, each device has memory of its own, and the clock says
# at which steps weights are kept: from there are smaller rates tried.
OTHER_NUMBERS = {"half-gains", "raw-ids", "one-cycle"}


# What they read was never written: ctc_loss leaves parts of its alphas, torch.empty everything.
UNINITIALISED = {"empty-memory", "long-transcript"}
# Measured by the clock, or by how much of it there was.
BY_THE_CLOCK = {
    "seconds",
    "samples_per_second",
    "load_share",
    "overhead",
    "peak_memory",
    "update_ratio_last",
    "artifacts",
    "stats",
    "sampled",
}

# Asked only where no smaller rate cures the run; which rates are tried, and from which step, goes by the
# weights that were kept, and these by the clock.
ASKED_BY_THE_CLOCK = {"narrower first weights and smaller learning rates", "larger learning rates"}


def told(patient: Patient, device: str, *, healthy: bool = False) -> dict[str, Any]:
    """The public report, without what is measured by the clock and without the device."""
    config = replace(Config(device=device), **patient.options)
    report = run_training(patient.entrypoint(healthy=healthy), config)
    found: dict[str, Any] = without(json.loads(json.dumps(public_form(report), default=str)))
    return found


def without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without(item) for key, item in value.items() if key not in BY_THE_CLOCK}
    if isinstance(value, list):
        return [without(item) for item in value if not _is_left_out(item)]
    if isinstance(value, float):
        return f"{value:.5g}"  # norms are summed in another order
    if isinstance(value, str):
        named = re.sub(r"\bsim(:0)?( \(Simulated accelerator\))?(?!\w)", "cpu", value)
        # cut to one length behind names of different lengths
        return re.sub(r"\[(?:simFloatType|torch\.FloatTensor) .*", "", named)
    return value


def _is_left_out(row: Any) -> bool:
    """Experiments that the CPU has not, or that go by the clock as weights are kept now and then; a
    loader that is slow now and then."""
    if not isinstance(row, dict):
        return row in ASKED_BY_THE_CLOCK if isinstance(row, str) else False
    name = str(row.get("name"))
    stretch = re.search(r" from step \d+$", name) is not None
    return name in ("on the CPU", "slow-loader") or "last good checkpoint" in name or stretch


@pytest.fixture(params=sorted(BY_NAME))
def patient(request: pytest.FixtureRequest) -> Iterator[Patient]:
    sim.configure({"SIM_SHARE_GENERATOR": "1"})
    if (needs := BY_NAME[request.param].needs) is not None:
        pytest.importorskip(needs)
    yield BY_NAME[request.param]
    torch.set_grad_enabled(True)  # one of them switches gradients off for good


QUIET = pytest.mark.filterwarnings(
    "ignore:.*degrees of freedom.*:UserWarning",
    "ignore:.*enable_nested_tensor.*:UserWarning",
    "ignore:.*to a scalar may lead.*:UserWarning",
)


@QUIET
def test_the_report_is_the_cpus(patient: Patient) -> None:
    if patient.name in CPU_AUTOCAST:
        pytest.skip("its autocast is the CPU's")
    here, there = told(patient, "sim"), told(patient, "cpu")
    if patient.name in MAKE_CPU_TENSORS:
        assert here["findings"][0]["name"] == "device-mismatch"
        return
    if patient.name in LEFT_BEHIND:
        first = here["findings"][0]
        assert (first["name"], first["culprit"]["location"]) == (
            patient.expect,
            there["findings"][0]["culprit"]["location"],
        )
        assert "they stayed on cpu" in first["explanation"]
        return
    if max(one["vitals"]["steps"] for one in (here, there)) > FULL_AT_FIRST:
        # which of the later steps are watched in full, and tell their gradients' norm, depends on
        # how long steps take
        del here["vitals"]["grad_norm_max"], there["vitals"]["grad_norm_max"]
    for finding in there["findings"]:
        finding["culprit"]["op"] = OTHER_OPS.get(patient.name, {}).get(
            finding["culprit"]["op"], finding["culprit"]["op"]
        )
    if patient.name in OTHER_OPS.keys() | UNINITIALISED | OTHER_NUMBERS:
        assert [(f["code"], f["culprit"], f["step"]) for f in here["findings"]] == [
            (f["code"], f["culprit"], f["step"]) for f in there["findings"]
        ]
    else:
        assert here == there


@QUIET
def test_the_healthy_twin_is_left_alone(patient: Patient) -> None:
    here = told(patient, "sim", healthy=True)
    names = [finding["name"] for finding in here["findings"]]
    if patient.name in MAKE_CPU_TENSORS:
        assert names in ([], ["device-mismatch"])
    elif patient.name in CPU_AUTOCAST:
        assert names in ([], ["autocast-not-applied"])
    else:
        assert names == []
        assert here["verdict"] == "nothing found"
