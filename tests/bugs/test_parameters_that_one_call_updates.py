"""On an accelerator an optimizer writes into all of its parameters by one call; the networks that
ran after it had then no parameters of their own."""

from __future__ import annotations

import pytest
import torch

from nanodoc.trace.calls import CallLog


@pytest.mark.parametrize("foreach", [False, True])
def test_a_parameter_stays_itself_after_its_update(foreach: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, foreach=foreach)
    named = [(f"param:{name}", parameter) for name, parameter in model.named_parameters()]
    with CallLog(model, named) as log:
        for _ in range(2):
            model(torch.randn(4, 2)).sum().backward()
            optimizer.step()
    layers = [call for call in log.finish().calls if call.name == "linear"]
    assert [argument.parameter for call in layers for argument in call.arguments[1:]] == [
        *("0.weight", "0.bias", "1.weight", "1.bias"),
        *("0.weight", "0.bias", "1.weight", "1.bias"),
    ]
