"""The tests in this folder run on a simulated accelerator (`backend/`), in processes of their own: torch has one accelerator a process, and
`--device auto` would take it everywhere. `scripts/test` runs them; by hand: NANODOC_SIMULATED=1 python -m pytest tests/accelerator
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "backend"))

import simulated_accelerator as sim

_ASKED = bool(os.environ.get("NANODOC_SIMULATED"))
_MISSING = sim.missing()
if _ASKED and _MISSING is None:
    sim.build()
    sim.register()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _MISSING or "runs in a process of its own: NANODOC_SIMULATED=1 python -m pytest tests/accelerator (scripts/test does)"
    if _ASKED and _MISSING is None:
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _fresh_device() -> Iterator[None]:
    """Settings of the device as they are by default; a test that loses the device does so in a process of its own."""
    yield
    if _ASKED and _MISSING is None:
        sim.configure({})


@pytest.fixture
def simulated_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Processes that the test starts have the device, as a maker's package would give it to them."""
    for key, value in sim.environment().items():
        monkeypatch.setenv(key, value)
    return monkeypatch
