"""Versions of installed libraries from their metadata alone: importing them is slow, and one that
is broken would take this down."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib import metadata

from nanodoc.environment.model import NOTE, OK, Check

KEY_LIBRARIES = (
    "numpy",
    "torchvision",
    "torchaudio",
    "torchdata",
    "torchao",
    "triton",
    "pytorch-triton",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "datasets",
    "tokenizers",
    "safetensors",
    "lightning",
    "pytorch-lightning",
    "fabric",
    "deepspeed",
    "fairscale",
    "megatron-core",
    "flash-attn",
    "xformers",
    "apex",
    "bitsandbytes",
    "transformer-engine",
    "timm",
    "diffusers",
    "torchmetrics",
    "tensorboard",
    "mlflow",
    "wandb",
    "scikit-learn",
    "pillow",
    "nvidia-nccl-cu11",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cudnn-cu11",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
)
_PINNED = re.compile(r"^torch\s*\(?==\s*([\w.]+)")
_CUDA_LIBRARY = re.compile(r"^nvidia-(.+)-cu(\d+)$")
_BUILT_FOR_TORCH = ("torchvision", "torchaudio")


def installed() -> dict[str, str]:
    """The key libraries that are there, with their versions."""
    found = {}
    for name in KEY_LIBRARIES:
        version = version_of(name)
        if version is not None:
            found[name] = version
    return found


def version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def pairing(torch_version: str) -> Check:
    """Whether libraries that are compiled against one release of torch are there with that release:
    their own metadata pins it."""
    wrong = [
        text for name in _BUILT_FOR_TORCH if (text := _mismatch(name, torch_version)) is not None
    ]
    there = [
        f"{name} {version}"
        for name in _BUILT_FOR_TORCH
        if (version := version_of(name)) is not None
    ]
    if wrong:
        return Check(
            name="torch pairing",
            state=NOTE,
            text="; ".join(wrong),
            help="install them together from one index, so that pip picks matching versions",
        )
    return Check(
        name="torch pairing",
        state=OK,
        text=f"{', '.join(there)} match" if there else "no torchvision or torchaudio installed",
    )


def _mismatch(name: str, torch_version: str) -> str | None:
    version = version_of(name)
    if version is None:
        return None
    release, _, build = torch_version.partition("+")
    for requirement in metadata.requires(name) or ():
        pinned = _PINNED.match(requirement)
        if pinned is not None and pinned[1] != release:
            return f"{name} {version} is built for torch {pinned[1]}, but torch is {torch_version}"
    own_build = version.partition("+")[2]
    if build and own_build and build != own_build:
        return f"{name} {version} and torch {torch_version} are builds for different devices"
    return None


def doubled() -> Check:
    """CUDA libraries of two CUDA releases, which lie in one folder and overwrite each other."""
    releases: dict[str, set[str]] = defaultdict(set)
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        match = _CUDA_LIBRARY.match((name or "").lower())
        if match is not None:
            releases[match[1]].add(match[2])
    twice = sorted(
        f"nvidia-{library}-cu{' and -cu'.join(sorted(cudas))}"
        for library, cudas in releases.items()
        if len(cudas) > 1
    )
    if twice:
        text = f"{'; '.join(twice)} are installed side by side in one folder"
        return Check(
            name="CUDA packages",
            state=NOTE,
            text=text,
            help="create a fresh environment; uninstalling one removes files of the other",
        )
    return Check(
        name="CUDA packages", state=OK, text="no duplicates" if releases else "none from pip"
    )
