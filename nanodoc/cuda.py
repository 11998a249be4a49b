"""What only CUDA (and ROCm, which torch calls by the same name) has: builds, capabilities and NCCL.

The one file of the package that names `torch.cuda`; everything that other devices have as well is
asked in `nanodoc.accelerator`. What CUDA's errors say is told apart without torch, in
`nanodoc.facts.cuda_errors`. torch is imported when it is asked, so that `nanodoc env` works where
torch is broken.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, NamedTuple

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)[af]?$")


class Properties(NamedTuple):
    """One GPU. `supported` says whether this build of torch has code for it, None where that can't
    be known."""

    name: str
    memory: int
    """Bytes."""
    capability: str
    """"sm_90", or ROCm's name of the architecture."""
    supported: bool | None
    identity: str
    """The same for all processes that see this GPU, whatever number they give it; "" where torch
    doesn't tell."""


def _cuda() -> Any:
    import torch

    return torch.cuda


def available() -> bool:
    """torch sees a CUDA (or ROCm) device."""
    return bool(_cuda().is_available())


def device_count() -> int:
    return int(_cuda().device_count())


def initialize() -> None:
    """Starts CUDA. Raises what torch says of a driver that is too old, or of a device that is not
    there."""
    _cuda().init()


def set_device(index: int) -> None:
    """The GPU that this process uses from now on; NCCL wants it before the first collective."""
    _cuda().set_device(index)


def emulates_bfloat16() -> bool:
    """The GPU has no bfloat16 in hardware (before Ampere)."""
    return not _cuda().is_bf16_supported(including_emulation=False)


def nccl_version() -> str | None:
    """The version of NCCL that torch was built with; None without CUDA or without NCCL."""
    with contextlib.suppress(Exception):  # a build without NCCL raises one of several errors
        return ".".join(map(str, _cuda().nccl.version()))
    return None


def architectures() -> list[str]:
    """What this build of torch has code for, such as sm_90; empty where no device is seen."""
    return list(_cuda().get_arch_list()) if available() else []


def build() -> str | None:
    """ "CUDA 12.6" or "ROCm 6.4", as torch was built; None for a build without either."""
    import torch

    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else None


def properties(index: int) -> Properties:
    """What CUDA tells of the GPU of this number."""
    import torch

    told, built = _cuda().get_device_properties(index), architectures()
    identity = str(
        getattr(told, "uuid", "") or f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')}/{index}"
    )
    if torch.version.hip:
        name = str(getattr(told, "gcnArchName", "unknown"))
        supported = (
            any(name.split(":")[0] == made.split(":")[0] for made in built) if built else None
        )
        return Properties(told.name, told.total_memory, name, supported, identity)
    supported = has_code((told.major, told.minor), built) if built else None
    return Properties(
        told.name, told.total_memory, f"sm_{told.major}{told.minor}", supported, identity
    )


def has_code(capability: tuple[int, int], architectures: list[str]) -> bool:
    """Whether a build for `architectures` runs on a GPU of `capability`.

    Machine code (sm_86) runs on the same major version from its minor version on, code for the
    driver to compile (compute_90) on everything from its own version on (NVIDIA, CUDA programming
    guide, "binary compatibility" and "PTX compatibility").
    """
    for architecture in architectures:
        match = _ARCHITECTURE.match(architecture)
        if match is None:
            continue
        built = int(match[2]), int(match[3])
        if (match[1] == "compute" or built[0] == capability[0]) and built <= capability:
            return True
    return False
