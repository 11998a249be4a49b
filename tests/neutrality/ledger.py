"""What a training is at each of its steps, as hashes: parameters, buffers, gradients, optimizers'
state, random states, training flags, the batch, and whatever a recipe counts itself."""

from __future__ import annotations

import atexit
import hashlib
import os
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

LINES: list[str] = []


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, torch.nn.parameter.UninitializedTensorMixin):
        digest.update(b"lazy")
    elif isinstance(value, torch.Tensor):
        plain = value.detach().as_subclass(torch.Tensor)
        if plain.layout is not torch.strided:
            plain = plain.to_dense()
        digest.update(str((plain.dtype, tuple(plain.shape))).encode())
        flat = torch.view_as_real(plain) if plain.is_complex() else plain
        digest.update(flat.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(str(key).encode())
            _add(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(type(value).__name__.encode())
        for item in value:
            _add(digest, item)
    else:
        digest.update(repr(value).encode())


def digest_of(*values: Any) -> str:
    digest = hashlib.sha1()
    for value in values:
        _add(digest, value)
    return digest.hexdigest()[:10]


def note(
    what: str,
    model: torch.nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    batch: Any = None,
    counted: Callable[[], Any] | None = None,
) -> None:
    """One line of the ledger: a name and a hash for each part."""
    numpy: Any = np.random.get_state()
    parts = {
        "parameters": [p for _, p in model.named_parameters()],
        "buffers": [b for _, b in model.named_buffers()],
        "gradients": [p.grad for _, p in model.named_parameters()],
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "torch": torch.get_rng_state(),
        "numpy": [numpy[1].tolist(), numpy[2]],
        "python": random.getstate(),
        "training": [module.training for module in model.modules()],
        "batch": batch,
        "counted": counted() if counted is not None else None,
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
    }
    LINES.append(" ".join([what, *(f"{key}={digest_of(value)}" for key, value in parts.items())]))


def written_at_exit() -> None:
    """The lines go to the file that LEDGER names, when the process ends."""
    atexit.register(_write)


def _write() -> None:
    with open(os.environ["LEDGER"], "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in LINES)
