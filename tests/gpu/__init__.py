"""Tests on a real accelerator, of any maker; `scripts/gpu_check` runs them. Where there is none
they are skipped."""

from __future__ import annotations

import pytest
import torch

from nanodoc import accelerator

_HERE = accelerator.current()
DEVICE = _HERE if _HERE is not None else torch.device("cpu")
"""The accelerator that torch sees; the CPU where everything is skipped."""

on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(_HERE is None or DEVICE.type == "sim", reason="no accelerator"),
]
on_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
