"""The tests in this folder run on a simulated accelerator (`backend/`), in processes of their own:
torch has one accelerator a process, and `--device auto` would take it everywhere. `scripts/test`
runs them; by hand: NANODOC_SIMULATED=1 python -m pytest tests/accelerator
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _fresh_device() -> Iterator[None]:
    """Settings of the device as they are by default; a test that loses the device does so in a
    process of its own."""
    from tests.accelerator.device import sim

    yield
    sim.configure({})


@pytest.fixture
def simulated_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Processes that the test starts have the device, as a maker's package would give it to
    them."""
    from tests.accelerator.device import sim

    for key, value in sim.environment().items():
        monkeypatch.setenv(key, value)
    return monkeypatch
