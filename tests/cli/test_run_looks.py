"""What `nanodoc run` shows of learning: --stats, --preflight, --overfit-batch, --tensorboard,
--live and the history."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nanodoc.clinic.catalogue import PATIENTS
from nanodoc.config import Config
from nanodoc.diagnosis.finding import OK, PROBLEM, SKIPPED
from nanodoc.errors import UsageError
from nanodoc.pipeline.run import run_training
from nanodoc.report.public import public_form
from nanodoc.report.report import Report
from nanodoc.report.terminal import Look, render
from tests.helpers import nanodoc, report_of

BY_NAME = {patient.name: patient for patient in PATIENTS}


def run(name: str, folder: Path, *, healthy: bool = False, **options: object) -> Report:
    return run_training(
        BY_NAME[name].entrypoint(healthy=healthy),
        Config(device="cpu", snapshot_dir=str(folder), **options),
    )  # type: ignore[arg-type]  # fields of the config


def test_stats_lists_every_parameter_and_layer_the_odd_ones_first(tmp_path: Path) -> None:
    report = run("yield-head", tmp_path, stats=True)
    text = render(report)
    assert report.stats is not None
    assert {p.name for p in report.stats.parameters} == {
        "body.0.weight",
        "body.0.bias",
        "head.weight",
        "head.bias",
    }
    assert {layer.module for layer in report.stats.layers} == {"body.0", "body.1", "head"}
    assert all(
        p.grad_max is not None and p.ratio is not None and p.moved for p in report.stats.parameters
    )
    assert "|Δw|/|w|" in text
    assert "body.0 Linear" in text
    assert json.loads(json.dumps(public_form(report)["stats"]))["sampled"][0] == 1


def test_a_parameter_without_a_gradient_says_so(tmp_path: Path) -> None:
    text = render(run("plain-dict", tmp_path, stats=True))
    assert "no gradient" not in text  # the branches are no parameters of the model
    frozen = nanodoc(
        "run",
        BY_NAME["hard-choice"].entrypoint(),
        "--stats",
        "--snapshot-dir",
        str(tmp_path),
        "--quiet",
    ).stdout
    assert "no gradient" in frozen


def test_log_every_writes_samples_into_the_history(tmp_path: Path) -> None:
    report = run("yield-head", tmp_path, healthy=True, log_every=7)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()[1:]]
    sampled = [line["sampled"]["step"] for line in lines if "sampled" in line]
    assert sampled[:4] == [1, 7, 14, 21]
    assert all(line["load_seconds"] >= 0 and line["lr"] == 0.01 for line in lines)
    assert len(report.vitals.update_ratios) >= 4


def test_preflight_runs_one_step_and_lists_its_checks(tmp_path: Path) -> None:
    report = run("padded-songs", tmp_path, healthy=True, preflight=True)
    checks = {check.name: check for check in report.preflight}
    assert report.vitals.steps == 1
    assert list(checks) == [
        "batch",
        "ids",
        "labels",
        "modes",
        "loss",
        "initial loss",
        "gradients",
        "optimizer",
    ]
    assert checks["ids"].text == "notes: 0…23 of 24 rows"
    assert "ln 24 = 3.178" in checks["initial loss"].text
    assert checks["modes"].state == SKIPPED
    assert {check.state for name, check in checks.items() if name != "modes"} == {OK}
    assert "✓ loss         cross_entropy of [648, 24] and [648]" in render(report)


def test_preflight_shows_what_is_wrong_before_training(tmp_path: Path) -> None:
    report = run("rent-table", tmp_path, preflight=True)
    states = {check.name: (check.state, check.text[:5]) for check in report.preflight}
    assert states["loss"] == (PROBLEM, "ND111")
    assert report.findings[0].code == "ND111"


@pytest.mark.parametrize("flag", ["--no-preflight", "--quiet"])
def test_an_id_out_of_range_is_found_before_the_lookup_or_after_it_failed(
    tmp_path: Path, flag: str
) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import torch, torch.nn as nn\n\ndef build():\n    model = nn.Embedding(4, 1)\n    ids = "
        "[torch.tensor([0, 4])]\n    return {'model': model, 'loss_fn': lambda m, b: m(b).mean(), "
        "'data': ids,\n            'optimizer': torch.optim.SGD(model.parameters(), 0.1)}\n"
    )
    found = report_of(
        nanodoc(
            "run", f"{file}:build", flag, "--output-format", "json", "--snapshot-dir", str(tmp_path)
        )
    )
    assert found["findings"][0]["code"] == "ND102"


def test_one_batch_is_fitted_or_it_is_said_that_it_is_not(tmp_path: Path) -> None:
    well = run("spoken-digits", tmp_path, healthy=True, overfit_batch=True, steps=120)
    assert well.findings == ()
    assert well.overfit is not None
    assert well.overfit.fits
    assert well.overfit.zeroed == ("batch[0]",)
    assert (well.overfit.zeroed_last or 0) > 2 * well.overfit.last
    assert "one batch      fitted: " in render(well)
    ill = run("lost-inputs", tmp_path, overfit_batch=True, steps=60)
    assert ill.findings[0].code == "ND617"


def test_inputs_that_are_not_used(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import torch, torch.nn as nn, torch.nn.functional as F\n\nclass Net(nn.Module):\n    def "
        "__init__(self):\n        super().__init__()\n        self.layer, self.out = nn.Linear(4, "
        "8), nn.Linear(8, 3)\n    def forward(self, x):\n        return "
        "self.out(torch.tanh(self.layer(x) * 1e-6))\n\ndef build():\n    torch.manual_seed(0)\n   "
        " model = Net()\n    y = torch.zeros(64, dtype=torch.long)\n    return {'model': model, "
        "'loss_fn': lambda m, b: F.cross_entropy(m(b[0]), b[1]), 'data': [(torch.randn(64, 4), "
        "y)],\n            'optimizer': torch.optim.Adam(model.parameters(), 0.05)}\n"
    )
    report = run_training(
        f"{file}:build",
        Config(device="cpu", overfit_batch=True, steps=60, snapshot_dir=str(tmp_path)),
    )
    assert [(one.code, one.severity) for one in report.findings] == [("ND617", "warning")]
    assert "inputs are not used" in report.findings[0].title


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own dependencies
def test_tensorboard_gets_every_scalar_of_the_history(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped, unused-ignore]

    report = run(
        "yield-head", tmp_path, healthy=True, log_every=10, tensorboard=str(tmp_path / "events")
    )
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert [one.value for one in events.Scalars("loss")] == pytest.approx(report.vitals.losses)
    assert {
        "gradient norm",
        "learning rate",
        "update ratio (log10)/group 0",
        "layers std/head",
    } <= set(events.Tags()["scalars"])
    shown = render(report, Look(width=400))
    assert f"tensorboard --logdir {tmp_path / 'events'}" in shown


def test_a_missing_tensorboard_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install .nanodoc-torch\[tensorboard\]"):
        run("yield-head", tmp_path, tensorboard=str(tmp_path / "events"))
    assert not (tmp_path / "nanodoc-out/history.jsonl").exists()


def test_live_without_a_terminal_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    done = nanodoc(
        "run",
        BY_NAME["yield-head"].entrypoint(healthy=True),
        "--live",
        "--snapshot-dir",
        str(tmp_path),
    )
    assert done.returncode == 0
    assert "--live needs a terminal" in done.stderr


@pytest.mark.parametrize("flags", [("--log-every", "0"), ("--log-every", "x")])
def test_bad_values_end_with_2(flags: tuple[str, str], tmp_path: Path) -> None:
    assert (
        nanodoc(
            "run", BY_NAME["yield-head"].entrypoint(), *flags, "--snapshot-dir", str(tmp_path)
        ).returncode
        == 2
    )


def test_thresholds_are_what_they_are_set_to(tmp_path: Path) -> None:
    assert run("spoken-digits", tmp_path, healthy=True).findings == ()
    strict = run(
        "hot-optimizer", tmp_path, healthy=True, thresholds={"unnormalised-input.largest": 1.0}
    )
    assert [one.code for one in strict.findings] == ["ND107"]
    lax = run("yield-head", tmp_path, thresholds={"unreachable-target.share": 0.99})
    assert "ND629" not in [one.code for one in lax.findings]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("dead-unit.share=0.7", "did you mean 'dead-units.share'?"),
        ("dead-units.share=many", "NAME=VALUE with a number"),
    ],
)
def test_thresholds_that_are_none(given: str, said: str, tmp_path: Path) -> None:
    done = nanodoc(
        "run",
        BY_NAME["yield-head"].entrypoint(),
        "--threshold",
        given,
        "--snapshot-dir",
        str(tmp_path),
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_explain_lists_a_rules_thresholds() -> None:
    assert "dead-units.share = 0.5" in nanodoc("explain", "dead-units").stdout
    assert "Thresholds" not in nanodoc("explain", "ND612").stdout
