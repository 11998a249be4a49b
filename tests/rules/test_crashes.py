"""Trainings that end in an exception: which tensors, which samples, which line, and what would
help."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.pipeline.run import run_training
from tests.helpers import marked

TRAIN = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

class Net(nn.Module):
    def __init__(self, features=400, channels=1):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3)
        self.head = nn.Linear(features, 3)

    def forward(self, x):
        h = self.conv(x).relu()  # convolves
        h = h.flatten(1)  # flattens
        return self.head(h)  # predicts

def recipe(model, data, loss_fn=None):
    loss_fn = loss_fn or (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    return {"model": model, "loss_fn": loss_fn, "data": data,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 12}

def batches(*shape, n=4, dtype=torch.float32):
    return [(torch.rand(4, *shape).to(dtype), torch.randint(0, 3, (4,))) for _ in range(n)]

def linear(): return recipe(Net(), batches(1, 8, 8))
def channels_last(): return recipe(Net(144), batches(8, 8, 1))
def not_flat(): return recipe(nn.Sequential(nn.Linear(48, 3)), batches(3, 4, 4))  # unflattened
def doubles(): return recipe(Net(144), batches(1, 8, 8, dtype=torch.float64))

def last_batch():
    data = [*batches(8), (torch.rand(2, 8), torch.randint(0, 3, (2,)))]
    return recipe(nn.Linear(8, 3), data, lambda model, batch: F.cross_entropy(model(batch[0]).view(4, 3), batch[1]))  # fixed size

def float_labels():
    data = [(torch.rand(4, 8), torch.zeros(4))] * 4
    return recipe(nn.Linear(8, 3), data)

class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 3)

    def forward(self, x):
        where = torch.arange(3, device="meta")  # elsewhere
        return self.body(x) + where  # meets

def devices(): return recipe(Positions(), batches(8))

def memory():
    def loss_fn(model, batch):
        out = model(batch[0])
        pairs = out.repeat(1 << 20, 1 << 20)  # far too large
        return pairs.mean()
    return recipe(nn.Linear(8, 3), batches(8), loss_fn)

def caught():
    def loss_fn(model, batch):
        try:
            model(batch[0].view(3, -1))
        except RuntimeError:
            pass
        raise ValueError("sizes of tensors must match, says the user")  # raises
    return recipe(nn.Linear(8, 3), batches(8), loss_fn)

class Texts(Dataset):
    def __init__(self, odd=(9,)):
        self.odd = odd

    def __len__(self):
        return 24

    def __getitem__(self, index):
        length = 7 if index in self.odd else 5
        return {"ids": np.arange(length), "label": index % 3}

def mean_of_ids(model, batch):
    return F.cross_entropy(model(batch["ids"].float().mean(1, keepdim=True)), batch["label"])

def ragged(workers=0, **options):
    torch.manual_seed(3)
    loader = DataLoader(Texts(), batch_size=4, num_workers=workers, **options)  # loads
    return recipe(nn.Linear(1, 3), loader, mean_of_ids)

def ragged_workers(): return ragged(2)
def ragged_shuffled(): return ragged(shuffle=True)

def ragged_subset():
    loader = DataLoader(Subset(Texts(), [20, 4, 9, 2, 1, 0]), batch_sampler=[[0, 1], [3, 2], [4, 5]])  # loads a part
    return recipe(nn.Linear(1, 3), loader, mean_of_ids)

class Images(Dataset):
    def __len__(self): return 12
    def __getitem__(self, index):
        return torch.rand(1 if index == 6 else 3, 16, 16), index % 3

def grey(): return recipe(nn.Linear(1, 3), DataLoader(Images(), batch_size=4), lambda m, b: m(b[0].mean((1, 2, 3))[:, None]).sum())  # loads images

class Stream(IterableDataset):
    def __iter__(self):
        for length in (3, 3, 3, 4):
            yield torch.ones(length)

def stream(): return recipe(nn.Linear(3, 3), DataLoader(Stream(), batch_size=2), lambda m, b: m(b).sum())  # streams

def checkpoint():
    state = torch.load("on-a-gpu.pt", weights_only=True)  # from elsewhere
    model = nn.Linear(8, 3)
    model.load_state_dict(state)
    return recipe(model, batches(8))

def body(): return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

def prefixed():
    model = body()
    model.load_state_dict({"module." + key: value for key, value in body().state_dict().items()}, strict=False)  # nothing fits
    return recipe(model, batches(8))

def new_head():
    model = body()
    model.load_state_dict({key: value for key, value in body().state_dict().items() if key.startswith("0.")} | {"9.weight": torch.ones(1)}, strict=False)
    return recipe(model, batches(8))

def loaded_twice():
    model = body()
    state = body().state_dict()
    model.load_state_dict({"module." + key: value for key, value in state.items()}, strict=False)
    model.load_state_dict(state)
    return recipe(model, batches(8))

def python_index(): return recipe(nn.Linear(8, 3), batches(8), lambda model, batch: model(batch[0]).sum() * [1.0][batch[1].numel()])  # too far

def device_lost():
    def loss_fn(model, batch):
        try:
            return F.cross_entropy(model(batch[0]), batch[1])
        except IndexError:
            raise RuntimeError("CUDA error: device-side assert triggered") from None
    data = batches(8, n=6)
    data[3][1][2] = 7
    return recipe(nn.Linear(8, 3), data, loss_fn)
"""


@pytest.fixture(autouse=True)
def _train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)


def first(name: str) -> Finding:
    findings = run_training(f"train.py:{name}", Config()).findings
    assert findings, name
    return findings[0]


@pytest.mark.parametrize(
    ("name", "code", "line", "help_"),
    [
        ("linear", "ND705", "predicts", "nn.Linear(144, 3)"),
        ("channels_last", "ND705", "convolves", "x.permute(0, 3, 1, 2)"),
        ("not_flat", "ND705", None, "x.flatten(1)"),
        ("last_batch", "ND705", "fixed size", "x.shape[0]"),
        ("doubles", "ND707", "convolves", "batch[0] is float64"),
        ("float_labels", "ND707", None, "target.long()"),
        ("devices", "ND706", "meets", "made by arange"),
        ("memory", "ND704", "far too large", "a dimension is repeated"),
        ("checkpoint", "ND703", "from elsewhere", "load to the CPU"),
        ("prefixed", "ND710", "nothing fits", "rename the keys"),
        ("caught", "ND709", "raises", None),
        ("python_index", "ND709", "too far", "len(self.rows)"),
    ],
)
def test_the_cause_its_line_and_what_helps(
    tmp_path: Path, name: str, code: str, line: str | None, help_: str | None
) -> None:
    if name == "checkpoint":
        _save_as_from(tmp_path / "on-a-gpu.pt", "cuda:2")
    finding = first(name)
    assert finding.code == code
    if line is not None:
        assert finding.culprit.location is not None
        assert finding.culprit.location.line == marked(tmp_path / "train.py", line)
    if help_ is not None:
        assert any(help_ in f"{fix.title} {fix.patch}" for fix in finding.fixes), finding.fixes


def test_both_shapes_with_the_lines_that_made_them(tmp_path: Path) -> None:
    finding = first("linear")
    evidence = dict(finding.evidence)
    assert (
        evidence["argument 1"]
        == f"[4, 144], made by flatten at train.py:{marked(tmp_path / 'train.py', 'flattens')}"
    )
    assert evidence["argument 2"].startswith("[3, 400], parameter head.weight")
    assert (finding.culprit.module, finding.culprit.module_type) == ("head", "Linear")


def test_the_last_batch_is_told_from_a_wrong_shape() -> None:
    assert "2 samples, the first one had 4" in first("last_batch").explanation


@pytest.mark.parametrize(
    ("name", "line", "samples", "indices"),
    [
        ("ragged", "loads", (1,), (9,)),
        pytest.param("ragged_workers", "loads", (1,), (9,), marks=pytest.mark.slow),
        ("ragged_shuffled", "loads", None, (9,)),
        ("ragged_subset", "loads a part", None, (2,)),
        ("grey", "loads images", (2,), (6,)),
    ],
)
def test_samples_that_cannot_be_stacked(
    tmp_path: Path, name: str, line: str, samples: tuple[int, ...] | None, indices: tuple[int, ...]
) -> None:
    finding = first(name)
    assert (finding.code, finding.phase, finding.culprit.kind) == ("ND104", "data", "data")
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == marked(tmp_path / "train.py", line)
    assert finding.culprit.dataset_indices == indices
    if samples is not None:
        assert finding.culprit.samples == samples


def test_the_padding_collate_is_tried_and_runs_as_it_is_printed() -> None:
    import torch

    finding = first("ragged")
    fix = finding.fixes[0]
    assert fix.verified
    assert fix.patch is not None
    names: dict[str, object] = {"torch": torch}
    exec(fix.patch, names)  # what we print must run
    collate = names["collate"]
    batch = collate([{"ids": torch.arange(3), "label": 1}, {"ids": torch.arange(5), "label": 0}])  # type: ignore[operator]
    assert batch["ids"].tolist() == [[0, 1, 2, 0, 0], [0, 1, 2, 3, 4]]
    assert batch["label"].tolist() == [1, 0]


def test_padding_is_no_advice_for_images_with_other_channels() -> None:
    finding = first("grey")
    assert "convert" in finding.fixes[0].title
    assert not any(fix.verified for fix in finding.fixes)


def test_what_could_not_be_looked_at_is_said() -> None:
    finding = first("stream")
    assert finding.code == "ND104"
    assert "iterable" in finding.explanation
    assert finding.culprit.dataset_indices == ()


@pytest.mark.parametrize("name", ["new_head", "loaded_twice"])
def test_loads_that_are_meant_to_be_partial(name: str) -> None:
    assert not [
        one for one in run_training(f"train.py:{name}", Config()).findings if one.code == "ND710"
    ]


def test_the_renamed_keys_are_a_change_of_the_line() -> None:
    finding = first("prefixed")
    assert "4 of them match by name and shape" in finding.explanation
    assert finding.fixes[0].patch is not None
    assert "key.removeprefix('module.')" in finding.fixes[0].patch


@pytest.mark.slow
def test_a_lost_device_is_looked_at_again_on_the_cpu() -> None:
    from nanodoc.pipeline.supervised import supervised
    from nanodoc.progress import Progress
    from nanodoc.supervise.job import Job

    report = supervised(
        Job(command="run", target="train.py:device_lost", config=Config()), Progress()
    )
    finding = report.findings[0]
    assert (finding.code, finding.step, finding.culprit.samples) == ("ND103", 3, (2,))
    assert "label 7 at [2]" in finding.title
    assert (
        "on the GPU",
        "RuntimeError: CUDA error: device-side assert triggered",
    ) in finding.evidence
    assert report.artifacts["batch"] == "nanodoc-out/nanodoc-step3-batch.pt"


def _save_as_from(path: Path, device: str) -> None:
    """A checkpoint whose tensors say that they come from another device."""
    import torch

    torch.save(torch.nn.Linear(8, 3).state_dict(), path)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if name.endswith("data.pkl"):
                content = content.replace(
                    b"X\x03\x00\x00\x00cpu",
                    b"X" + len(device).to_bytes(4, "little") + device.encode(),
                )
            archive.writestr(name, content)
