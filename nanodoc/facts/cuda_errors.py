"""What the messages of CUDA's and HIP's errors say, told without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping

BLOCKING: Mapping[str, str] = {"CUDA_LAUNCH_BLOCKING": "1"}
"""The environment in which a kernel's error is raised by the call that launched it."""

CONTEXT_LOST = (
    r"device-side assert triggered|an illegal memory access|CUBLAS_STATUS_(?:ALLOC_FAILED"
    r"|EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)|unspecified launch failure|(?:CUDA|HIP) "
    r"error: (?:misaligned address|an illegal instruction|the launch timed out|hardware stack error"
    r"|invalid program counter|operation not supported on global/shared address space"
    r"|uncorrectable |unknown error)"
)
"""What CUDA's (and HIP's) errors say after which the context is gone, as a regular expression:
those that its documentation of `cudaError_t` calls unrecoverable, "the process must be terminated
and relaunched"."""

_CUBLAS = re.compile(r"CUBLAS_STATUS_\w+")


def names_cuda(message: str) -> bool:
    """An error that names its maker: CUDA's or HIP's, whose unrecoverable ones are known."""
    return re.search(r"\b(?:CUDA|HIP|hip|cuda)\b", message) is not None


def is_cuda(device: str) -> bool:
    """A device's name, as reports have it ("cuda:0 (NVIDIA H100)"), is that of a CUDA device."""
    return device.startswith("cuda")


def cublas_status(message: str) -> str | None:
    """The CUBLAS_STATUS that an error's message names."""
    match = _CUBLAS.search(message)
    return match[0] if match is not None else None
