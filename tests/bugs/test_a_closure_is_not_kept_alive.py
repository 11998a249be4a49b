"""A function that torch calls under the watching was kept for ever, and with it whatever its closure
held: an optimizer of a training that was over counted as one of the next."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

from torch import nn

from nanodoc.trace.call_options import _signature
from nanodoc.trace.calls import plain_name


def holding(model: nn.Module) -> tuple[Callable[..., nn.Module], weakref.ref[nn.Module]]:
    def __rsub__(loss: object, retain_graph: bool = False) -> nn.Module:
        return model

    return __rsub__, weakref.ref(model)


def test_neither_a_name_nor_a_signature_keeps_the_function() -> None:
    function, kept = holding(nn.Linear(2, 2))
    assert plain_name(function) == "sub"
    assert _signature(function) == ("loss", "retain_graph")
    del function
    gc.collect()
    assert kept() is None
