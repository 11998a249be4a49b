"""A function that torch calls under the watching was kept for ever, and with it whatever its closure
held: an optimizer of a training that was over counted as one of the next."""

from __future__ import annotations

import gc
import weakref

from torch import nn

from nanodoc.trace.calls import _signature, plain_name


def test_neither_a_name_nor_a_signature_keeps_the_function() -> None:
    model = nn.Linear(2, 2)

    def __rsub__(loss: object, retain_graph: bool = False) -> nn.Module:
        return model

    kept = weakref.ref(model)
    assert plain_name(__rsub__) == "sub"
    assert _signature(__rsub__) == ("loss", "retain_graph")
    del __rsub__, model
    gc.collect()
    assert kept() is None
