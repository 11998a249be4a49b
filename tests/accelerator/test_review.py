"""What a review of the first version found, each as it was tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from nanodoc import accelerator
from nanodoc.config import Config
from nanodoc.errors import UsageError
from nanodoc.facts.failure import Failure
from nanodoc.facts.failure_kinds import device_is_lost
from nanodoc.pipeline.check_grad_graph import check_grad_graph
from nanodoc.pipeline.run import run_training
from nanodoc.report.report import Report
from nanodoc.tensors.modules import move_module
from tests.accelerator.device import FIRST, SECOND

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

def made(model, loss_fn, data, **more):
    torch.manual_seed(0)
    return {"model": model, "loss_fn": loss_fn, "data": data, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 5, **more}
"""


def run(tmp_path: Path, source: str, device: str = "sim", command: str = "run") -> Report:
    (tmp_path / "train.py").write_text(HEAD + source)
    made = run_training if command == "run" else check_grad_graph
    return made("train.py:build", Config(device=device))


def test_a_run_on_the_cpu_leaves_the_accelerator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of the current device can't be had without a context on it, which forked workers
    can't share."""

    def busy() -> int:
        raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable")

    monkeypatch.setattr(torch.accelerator, "current_device_index", busy)
    assert accelerator.pick_device("cpu") == torch.device("cpu")
    assert accelerator.device_before_import("auto").type == "sim"
    assert accelerator.exists("sim")
    assert not accelerator.exists("cuda")


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: the launch timed out and was terminated", True),
        ("CUDA error: unknown error", True),
        ("CUDA error: too many resources requested for launch", False),
        ("CUDA error: operation not permitted when stream is capturing", False),
        ("CUDA error: no kernel image is available for execution on the device", False),
        ("HIP error: unspecified launch failure", True),
        ("SIM error: a kernel failed on the device", True),
        ("index 10 is out of bounds: 0, range 0 to 5", False),
    ],
)
def test_not_every_error_of_an_accelerator_loses_it(message: str, lost: bool) -> None:
    failure = Failure(
        type="AcceleratorError",
        message=message,
        phase="forward",
        frames=(),
        raised_by_torch=True,
        torch_function=None,
    )
    assert device_is_lost(failure) is lost
    assert not device_is_lost(
        replace(
            failure,
            type="RuntimeError",
            message=f"an unknown error: {message.partition(': ')[2][:12]}",
        )
    )


def test_a_tensor_on_the_host_is_no_parameter_of_a_plain_list(tmp_path: Path) -> None:
    report = run(
        tmp_path,
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.spare = nn.Linear(4, 3), [nn.Parameter(torch.ones(3))]

    def forward(self, x):
        return self.linear(x)

def build():
    def loss_fn(model, batch):
        return (model(batch) * torch.ones(3)).mean()
    return made(Net(), loss_fn, [torch.randn(5, 4)])
""",
    )
    assert report.findings[0].name == "device-mismatch"


SPREAD = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4).to(ONE), nn.Linear(4, 3).to("sim:1")

    def forward(self, x):
        return self.second(self.first(x.to(ONE)).to("sim:1"))

def build():
    return made(Net(), lambda model, batch: model(batch).square().mean(), [torch.randn(5, 4)])
"""


def test_a_spread_model_is_not_sent_elsewhere(tmp_path: Path) -> None:
    source = SPREAD.replace("ONE", '"sim:0"')
    assert run(tmp_path, source, "auto").verdict == "nothing found"
    for device in ("cpu", "sim:1"):
        with pytest.raises(UsageError, match=r"places its model on sim:0, sim:1"):
            run(tmp_path, source, device)


def test_a_part_kept_on_the_cpu_stays_there(tmp_path: Path) -> None:
    assert run(tmp_path, SPREAD.replace("ONE", '"cpu"'), "auto").verdict == "nothing found"


def test_a_late_error_in_a_graph_check_is_the_trainings(tmp_path: Path) -> None:
    source = """
def build():
    model = nn.Linear(4, 3)
    def loss_fn(model, batch):
        return torch.zeros(3, 3, device=batch.device).scatter_add(0, torch.full((1, 3), 7, device=batch.device), model(batch)[:1]).sum()
    return made(model, loss_fn, [torch.randn(5, 4)])
"""
    (tmp_path / "train.py").write_text(HEAD + source)
    from tests.accelerator.device import sim
    from tests.helpers import fresh_nanodoc, report_of

    with pytest.MonkeyPatch.context() as patch:
        for key, value in sim.environment().items():
            patch.setenv(key, value)
        done = fresh_nanodoc(
            "check-grad-graph", "train.py:build", "--output-format", "json", cwd=tmp_path
        )
    assert "internal error" not in done.stderr
    assert report_of(done)["findings"][0]["code"] == "ND701"


def test_an_index_error_that_the_code_caught_stays_out_of_a_later_failure(tmp_path: Path) -> None:
    report = run(
        tmp_path,
        """
table = torch.arange(5.0)

def build():
    model, steps = nn.Linear(4, 3), []
    def loss_fn(model, batch):
        steps.append(1)
        try:
            table[torch.tensor([7])]
        except IndexError:
            pass
        return model(batch if len(steps) < 4 else batch[:, :3]).mean()
    return made(model, loss_fn, [torch.randn(5, 4)])
""",
    )
    assert [(finding.name, finding.step) for finding in report.findings] == [("shape-mismatch", 3)]


def test_tied_parameters_that_are_replaced_stay_tied() -> None:
    import weakref

    model = nn.ModuleDict({"embed": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    model["head"].weight = model["embed"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # torch can't exchange a tensor that something refers to weakly
    held = weakref.ref(model["embed"].weight)
    move_module(model, FIRST, [optimizer])
    assert model["head"].weight is model["embed"].weight
    assert (
        optimizer.param_groups[0]["params"] == [model["head"].weight]
        or optimizer.param_groups[0]["params"][0] is model["head"].weight
    )
    assert model["head"].weight.device == FIRST != SECOND
    assert held is not None


def test_a_call_changed_on_trial_does_not_lose_the_device(tmp_path: Path) -> None:
    """Summed over the other axis the scores have two classes, the labels three: a kernel that is
    given both would end in an assert, and take the whole process's device with it."""
    report = run(
        tmp_path,
        """
def build():
    torch.manual_seed(0)
    def loss_fn(model, batch):
        scores = model(batch[0]).view(-1, 3, 2).sum(2)
        return F.cross_entropy(scores, batch[1]) + (scores * batch[0][:, :4]).sum()
    data = [(torch.randn(12, 5), torch.arange(12) % 3)] * 4
    return made(nn.Linear(5, 6), loss_fn, data)
""",
    )
    assert report.findings[0].name == "shape-mismatch"
    assert not any("own" in why for _, why in report.not_checked), report.not_checked
    torch.accelerator.synchronize()  # raises where the device is lost
