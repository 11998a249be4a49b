"""Samples that are drawn again when the run is over: a data set that writes over them, an image that is
turned without its mask."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import nanodoc, python

MAKE = '''
import multiprocessing
import random
import socket
import threading
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(30, 3, 16, 16, generator=GENERATOR)
MASKS = (IMAGES.mean(1) > 0.5).long()
MASKS[:, :, 12:] = 0


def _answer(connection):
    while number := connection.recv(3):
        connection.sendall(number)


def cropped(picture):
    top, left = random.randrange(5), random.randrange(5)
    return picture[..., top : top + 12, left : left + 12].copy()


class Data(Dataset):
    """One method for each way to draw a sample."""

    def __init__(self, way):
        self.way = way
        self.images = [image.numpy().copy() for image in IMAGES]
        self.masks = MASKS.clone()
        self.stack = IMAGES.clone()
        self.buffer = np.zeros((3, 16, 16), dtype=np.float32)
        self.own = np.random.default_rng(0)
        self.mean, self.seen = np.zeros((3, 16, 16), dtype=np.float32), 0
        self.drawn = 0
        self.seen_before = np.zeros(1, dtype=np.float32)
        if way == "reads_on":
            text = "".join(f"{number:<300}" for number in range(len(MASKS)))
            Path("numbers.txt").write_text(text)
            self.file, self.next = open("numbers.txt", "rb", buffering=0), 0
        if way == "asks_a_server":
            self.client, theirs = socket.socketpair()
            threading.Thread(target=_answer, args=(theirs,), daemon=True).start()
        self.counted = multiprocessing.Value("i", 0) if way == "counts_for_all" else None

    def __len__(self):
        return len(MASKS)

    def __getitem__(self, index):
        self.drawn += 1
        return getattr(self, self.way)(index)

    # -- sick

    def writes_an_array(self, index):
        image = self.images[index]
        image *= 0.5
        return torch.from_numpy(image), MASKS[index]

    def writes_a_tensor(self, index):
        image = self.stack[index]
        image.sub_(0.5).div_(0.25)
        return image, MASKS[index]

    def blanks_a_part(self, index):
        image = self.stack[index]
        at = random.randrange(12)
        image[:, at : at + 4] = 0
        return image, MASKS[index]

    def blanks_what_is_blank(self, index):
        """As a training of many epochs leaves it behind."""
        if not self.drawn - 1:
            self.stack.zero_()
        return self.blanks_a_part(index)

    def turns_the_image(self, index):
        image, mask = torch.from_numpy(self.images[index]), MASKS[index]
        if random.random() < 0.5:
            image = image.flip(2)
        return image * 0.9 + 0.1, mask

    def turns_the_mask(self, index):
        image, mask = torch.from_numpy(self.images[index]), MASKS[index]
        if np.random.rand() < 0.5:
            mask = mask.flip(1)
        return image, mask

    def turns_them_by_two_draws(self, index):
        image, mask = self.images[index], MASKS[index].numpy()
        image = np.rot90(image, np.random.randint(4), axes=(1, 2)).copy()
        mask = np.rot90(mask, np.random.randint(4)).copy()
        return torch.from_numpy(image), torch.from_numpy(mask)

    def crops_by_two_draws(self, index):
        image = cropped(self.images[index])
        mask = cropped(self.masks[index].numpy())
        return torch.from_numpy(image), torch.from_numpy(mask)

    # -- healthy

    def crops_both(self, index):
        """And lays noise, another brightness and a negative over the image alone."""
        image, mask = self.images[index], self.masks[index].numpy()
        state = random.getstate()
        image = cropped(image)
        random.setstate(state)
        mask = cropped(mask)
        image = (1 - image if random.random() < 0.5 else image) * random.uniform(0.5, 1)
        noise = np.random.normal(0, 0.3, image.shape).astype(np.float32)
        return torch.from_numpy(image * 0.9 + noise), torch.from_numpy(mask)

    def clamps_what_it_keeps(self, index):
        image = self.stack[index]
        image.clamp_(0.2, 0.8)
        return image, MASKS[index]

    def copies(self, index):
        image = self.images[index].copy()
        image *= 0.5
        return torch.from_numpy(image), MASKS[index]

    def fills_a_buffer_by_its_own_generator(self, index):
        self.buffer[:] = self.images[index] + self.own.normal(size=self.buffer.shape)
        return torch.from_numpy(self.buffer.copy()), MASKS[index]

    def subtracts_the_mean_so_far(self, index):
        self.seen += 1
        self.mean += (self.images[index] - self.mean) / self.seen
        return torch.from_numpy(self.images[index] - self.mean), MASKS[index]

    def turns_both(self, index):
        image, mask = torch.from_numpy(self.images[index]), MASKS[index]
        turns = random.randrange(4)
        image, mask = image.rot90(turns, (1, 2)), mask.rot90(turns)
        if random.random() < 0.5:
            image, mask = image.flip(2), mask.flip(1)
        return image + 0.05 * torch.randn(image.shape), mask

    def gives_another_view(self, index):
        image, mask = self.turns_both(index)
        view = torch.from_numpy(self.images[index])
        return image, mask, view.flip(2) if random.random() < 0.5 else view

    def writes_a_file(self, index):
        with open("drawn.txt", "a") as file:
            file.write(f"{index}\\n")
        print("drawn", index)
        return self.copies(index)

    def counts_for_all(self, index):
        self.counted.value += 1
        return self.copies(index)

    def counts_in_an_array(self, index):
        self.seen_before[0] += 1
        return torch.from_numpy(self.images[index] / self.seen_before[0]), MASKS[index]

    def reads_on(self, index):
        number = self.file.read(300)
        if not number:
            self.file.seek(0)
            number = self.file.read(300)
        assert int(number) == self.next, (number, self.next)
        self.next = (self.next + 1) % len(MASKS)
        return self.copies(index)

    def asks_a_server(self, index):
        self.client.sendall(b"%03d" % index)
        assert int(self.client.recv(3)) == index
        return self.copies(index)

    def fails_the_second_time(self, index):
        if self.drawn > 65:
            raise RuntimeError("no more")
        return self.copies(index)


def recipe(way, subset=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    data = Data(way)

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    rows = Subset(data, range(10, 26)) if subset else data
    return {"model": model, "loss_fn": loss_fn, "data": DataLoader(rows, batch_size=8),
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 8}
'''


def findings(folder: Path, way: str, *, subset: bool = False) -> list[tuple[str, str]]:
    """Codes and the source of their lines; of the rules that draw samples."""
    file = folder / "data.py"
    file.write_text(MAKE + f"\n\ndef build():\n    return recipe({way!r}, subset={subset})\n")
    report = run_training(f"{file}:build", Config(select=("ND119", "ND120")))
    assert not any("samples drawn again" in what for what, _ in report.not_checked)
    lines = file.read_text().splitlines()
    return [
        (f.code, lines[f.culprit.location.line - 1].strip() if f.culprit.location else "")
        for f in report.findings
    ]


@pytest.mark.parametrize(
    ("way", "code", "line"),
    [
        ("writes_an_array", "ND119", "image *= 0.5"),
        ("writes_a_tensor", "ND119", "image.sub_(0.5).div_(0.25)"),
        ("blanks_a_part", "ND119", "image[:, at : at + 4] = 0"),
        ("blanks_what_is_blank", "ND119", "image[:, at : at + 4] = 0"),
        ("turns_the_image", "ND120", "image = image.flip(2)"),
        ("turns_them_by_two_draws", "ND120", "image = np.rot90(image, np.random.randint(4),"),
        ("crops_by_two_draws", "ND120", "image = cropped(self.images[index])"),
    ],
)
@pytest.mark.parametrize("subset", [False, True])
def test_the_line_is_named(tmp_path: Path, way: str, code: str, line: str, subset: bool) -> None:
    [(told, at)] = findings(tmp_path, way, subset=subset)
    assert told == code
    assert at.startswith(line)


def test_a_mask_that_is_turned_by_itself(tmp_path: Path) -> None:
    assert [code for code, _ in findings(tmp_path, "turns_the_mask")] == ["ND120"]


@pytest.mark.parametrize(
    "way",
    [
        "copies",
        "fills_a_buffer_by_its_own_generator",
        "subtracts_the_mean_so_far",
        "clamps_what_it_keeps",
        "turns_both",
        "crops_both",
        "gives_another_view",
        "counts_for_all",
        "counts_in_an_array",
        "fails_the_second_time",
    ],
)
def test_nothing_is_said_of_healthy_draws(tmp_path: Path, way: str) -> None:
    assert findings(tmp_path, way) == []


SCRIPT = """
from data import *

data = Data({way!r})
torch.manual_seed(0)
random.seed(0)
np.random.seed(0)
model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for image, mask in DataLoader(data, batch_size=8, shuffle=True):
        loss = F.cross_entropy(model(image), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
print(data.drawn, data.counted and data.counted.value, random.random(), float(torch.rand(())),
      np.random.rand(), data.own.random(), float(data.stack.sum()), float(np.sum(data.images)))
"""


@pytest.mark.parametrize("way", ["writes_a_file", "counts_for_all", "writes_an_array"])
def test_a_training_finds_its_data_set_as_it_left_it(tmp_path: Path, way: str) -> None:
    """What drawing changes - arrays, counters, files, generators - is as without us."""
    written = []
    for name in ("bare", "watched"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "data.py").write_text(MAKE)
        (folder / "train.py").write_text(SCRIPT.format(way=way))
        if name == "bare":
            done = python("train.py", cwd=folder)
        else:
            done = nanodoc("run", "train.py", cwd=folder)
        drawn = folder / "drawn.txt"
        written.append((done.stdout, drawn.read_text() if drawn.exists() else ""))
    assert written[0] == written[1]
    assert ("ND119" in done.stderr) == (way == "writes_an_array")


TWICE = """
from data import *

data = Data({way!r})


def train(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), kind(), nn.Conv2d(4, 2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for image, mask in DataLoader(data, batch_size=8):
            loss = F.cross_entropy(model(image), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(kind.__name__, loss.item())


train(nn.ReLU)
train(nn.Tanh)
"""


@pytest.mark.parametrize("way", ["reads_on", "asks_a_server"])
def test_a_second_training_finds_its_files_and_connections(tmp_path: Path, way: str) -> None:
    """A forked process shares the positions of open files, and connections."""
    (tmp_path / "data.py").write_text(MAKE)
    (tmp_path / "train.py").write_text(TWICE.format(way=way))
    bare = python("train.py", cwd=tmp_path)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, bare.stdout)
    assert "training 2" in done.stderr
