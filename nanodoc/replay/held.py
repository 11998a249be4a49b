"""What a snapshot holds, as a report that shows it. Nothing of it is run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from nanodoc._version import __version__
from nanodoc.facts.snapshot import HeldTensor, SnapshotFacts
from nanodoc.replay.snapshot import read_snapshot
from nanodoc.report.report import Report, RunInfo

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_MOST = 5000  # tensors of a part
_MOST_INDICES = 10_000


def snapshot_report(path: Path) -> Report:
    """The report of a snapshot's content. Raises `UsageError`."""
    content = read_snapshot(path)
    told = content.get("run")
    run: Mapping[str, Any] = told if isinstance(told, dict) else {}
    machine = content.get("machine")
    made = machine if isinstance(machine, dict) else {}
    words = [f"torch {content['torch']}"] if content.get("torch") else []
    words += [str(made[key]) for key in ("device", "platform") if made.get(key)]
    words += [f"Python {made['python']}"] if made.get("python") else []
    config = content.get("config")
    facts = SnapshotFacts(
        step=content.get("step"),
        loss=_number(run.get("loss")),
        grad_norm=_number(run.get("grad_norm")),
        made_with=", ".join(words),
        indices=tuple((content.get("indices") or [])[:_MOST_INDICES]),
        parts=tuple(
            (name, rows) for name, value in _parts(content) if (rows := tuple(_tensors(value)))
        ),
    )
    return Report(
        nanodoc=__version__,
        run=RunInfo(
            entrypoint=str(content.get("entrypoint") or path.name),
            command="view",
            config=config if isinstance(config, dict) else {},
            device=str(made.get("device") or "cpu"),
            amp=str(run["amp"]).removeprefix("torch.") if run.get("amp") else None,
            seed=None,
            steps_requested=0,
            steps_run=0,
            torch=str(content.get("torch") or ""),
            python=str(made.get("python") or ""),
        ),
        artifacts={"snapshot": str(path)},
        snapshot=facts,
    )


def _parts(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if "nanodoc_snapshot" not in content:
        yield "batch", {key: content[key] for key in ("x", "y") if key in content}
        yield "model", content.get("state")
        return
    batches = content["batches"]
    yield "batch", batches[0] if len(batches) == 1 else batches
    yield "model", content["model"]
    names = [name for name in content["model"] if isinstance(name, str)]
    gradients = content.get("gradients") or []
    if len(gradients) == len(names):
        yield "gradients", dict(zip(names, gradients, strict=True))
    else:
        yield "gradients", gradients
    yield "optimizer", content.get("optimizers")


def _tensors(value: Any) -> Iterator[HeldTensor]:
    """Of nested mappings and sequences; what is no tensor is left out."""
    waiting, found = [("", value)], 0
    while waiting and found < _MOST:
        name, held = waiting.pop()
        if isinstance(held, torch.Tensor):
            found += 1
            yield _shown(name, held)
        elif isinstance(held, Mapping):
            inner = [(f"{name}.{key}" if name else str(key), one) for key, one in held.items()]
            waiting += reversed(inner)
        elif isinstance(held, (list, tuple)):
            waiting += reversed([(f"{name}[{i}]", one) for i, one in enumerate(held)])


def _shown(name: str, tensor: torch.Tensor) -> HeldTensor:
    minimum = maximum = None
    nonfinite = 0
    # what has no range on this build is shown without one
    with contextlib.suppress(RuntimeError, NotImplementedError, TypeError):
        minimum, maximum, nonfinite = _range(tensor.detach())
    if tensor.is_nested:
        return HeldTensor(name=name, dtype=f"nested {tensor.dtype}", shape=())
    return HeldTensor(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        minimum=minimum,
        maximum=maximum,
        nonfinite=nonfinite,
    )


def _range(tensor: torch.Tensor) -> tuple[float | None, float | None, int]:
    """(least, greatest, elements that are not finite)"""
    plain = (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_complex()
    )
    if not plain or not tensor.numel() or tensor.device.type != "cpu":
        return None, None, 0
    if tensor.is_floating_point():
        values = tensor.float() if tensor.itemsize == 1 else tensor
        finite = values[torch.isfinite(values)]
        nonfinite, values = values.numel() - finite.numel(), finite
    else:  # unsigned kinds have few operations
        nonfinite, values = 0, tensor.double() if tensor.dtype in _UNSIGNED else tensor
    if not values.numel():
        return None, None, nonfinite
    low, high = torch.aminmax(values)
    return float(low), float(high), nonfinite


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError:  # Python's whole numbers have no end
        return None
