"""torch's builds with an accelerator refuse to synchronize the meta device. A training that failed
while a weight lay there ended in an error of our own."""

from __future__ import annotations

import pytest
import torch

from nanodoc.examination.late_errors import late_error


def test_there_is_nothing_to_wait_for_on_the_meta_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(device: torch.device) -> None:
        raise ValueError(f"{device.type} doesn't match the current accelerator cuda.")

    monkeypatch.setattr(torch.accelerator, "synchronize", refusing)
    assert late_error([torch.device("cpu"), torch.device("meta")]) is None
