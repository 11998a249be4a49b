"""The simulated device for the tests of this folder. Where there is none, importing this skips the
test file and says why."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "backend"))

import simulated_accelerator as sim

MISSING = sim.missing()
if MISSING is None and not os.environ.get("NANODOC_SIMULATED"):
    MISSING = (
        "runs in processes of its own: NANODOC_SIMULATED=1 python -m pytest tests/accelerator "
        "(scripts/test does)"
    )
if MISSING is not None:
    pytest.skip(MISSING, allow_module_level=True)

sim.build()
sim.register()

FIRST, SECOND = torch.device("sim", 0), torch.device("sim", 1)
