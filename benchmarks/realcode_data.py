"""Small data for public training scripts: made from random numbers, nothing is downloaded."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np


def make_data(root: Path) -> None:
    """Puts what the scripts read where they look for it, below the copies in `root`."""
    examples, gpt = root / "examples", root / "nanoGPT"
    if gpt.exists():
        _tiny_text(gpt / "data" / "tiny")
    if not examples.exists():
        return
    for folder in (examples / "data", examples / "mnist_forward_forward" / "data"):
        _mnist(folder / "MNIST" / "raw")
    _mnist(examples / "data" / "MNIST" / "raw")
    for name in ("gcn", "gat"):
        _cora(examples / name / "cora")
    _words(examples / "word_language_model" / "data" / "tiny")
    (examples / "vae" / "results").mkdir(exist_ok=True)
    _waves(examples / "time_sequence_prediction")
    _cifar(examples / "vision_transformer" / "dataset" / "cifar-10-batches-py")
    _images(examples / "super_resolution" / "dataset" / "BSDS300" / "images" / "train", 12)
    _images(examples / "super_resolution" / "dataset" / "BSDS300" / "images" / "test", 2)
    _images(examples / "fast_neural_style" / "images" / "train" / "one", 12)
    _images(examples / "fast_neural_style" / "images", 1, "style")


def _mnist(folder: Path, train: int = 400, test: int = 60) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for name, count in (("train", train), ("t10k", test)):
        labels = random.permutation(np.arange(count) % 10)
        images = np.stack([_digit(label, random) for label in labels])
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            magic = struct.pack(">BBBB", 0, 0, 8, array.ndim)
            sizes = struct.pack(f">{array.ndim}I", *array.shape)
            path = folder / f"{name}-{kind}-ubyte"
            path.write_bytes(magic + sizes + array.astype(np.uint8).tobytes())


def _digit(label: int, random: np.random.Generator) -> Any:
    """Bright strokes on a dark ground, in places of the label's own that are moved a little, with
    some more and some fewer for each picture."""
    image = np.zeros((28, 28))
    of_label = np.random.default_rng(int(label)).integers(3, 20, (6, 2))
    of_picture = random.integers(3, 20, (3, 2))
    for row, column in [*of_label[random.random(6) < 0.8], *of_picture]:
        row, column = np.array([row, column]) + random.integers(-2, 3, 2)
        length = random.integers(4, 9)
        if random.random() < 0.5:
            image[row : row + 2, column : column + length] = random.integers(120, 256)
        else:
            image[row : row + length, column : column + 2] = random.integers(120, 256)
    return image


def _cifar(folder: Path, each: int = 20) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        labels = random.permutation(np.arange(each) % 10)
        images = random.integers(0, 60, (each, 3072)) + labels[:, None] * 15
        batch = {"data": images.astype(np.uint8), "labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(batch))
    classes = [f"class {number}" for number in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": classes}))


def _tiny_text(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    letters = [chr(97 + i) for i in range(20)]
    for name, count in (("train", 4000), ("val", 1000)):
        _walk(random, count, 20).astype(np.uint16).tofile(folder / f"{name}.bin")
    meta = {"vocab_size": 20, "itos": dict(enumerate(letters))}
    meta["stoi"] = {letter: i for i, letter in enumerate(letters)}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def _walk(random: np.random.Generator, count: int, values: int) -> Any:
    """Each value is one to three above the one before: there is something to learn."""
    return (random.integers(values) + random.integers(1, 4, count).cumsum()) % values


def _cora(folder: Path, nodes: int = 1700) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    classes = [f"Class_{i}" for i in range(7)]
    content = []
    for node in range(nodes):
        label = node % 7
        words = (random.random(40) < 0.1) | (np.arange(40) % 7 == label)
        content.append("\t".join([str(node), *map(str, words.astype(int)), classes[label]]))
    cites = [f"{a}\t{b}" for a, b in random.integers(0, nodes, (4 * nodes, 2)) if a != b]
    (folder / "cora.content").write_text("\n".join(content) + "\n")
    (folder / "cora.cites").write_text("\n".join(cites) + "\n")


def _words(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    words = [f"w{i}" for i in range(60)]
    for name, lines in (("train", 60), ("valid", 10), ("test", 10)):
        text = "\n".join(" ".join(words[n] for n in _walk(random, 12, 60)) for _ in range(lines))
        (folder / f"{name}.txt").write_text(text + "\n")


def _waves(folder: Path) -> None:
    import torch

    random = np.random.default_rng(0)
    shifts = random.integers(-80, 80, 12).reshape(12, 1)
    waves = np.sin((np.arange(60) + shifts) / 20.0).astype("float64")
    with (folder / "traindata.pt").open("wb") as file:
        torch.save(waves, file)


def _images(folder: Path, count: int, name: str = "") -> None:
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(list(folder.name.encode()))  # others for the test
    for number in range(count):
        pixels = random.integers(0, 255, (72, 72, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{name or number}.jpg")
