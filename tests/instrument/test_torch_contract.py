"""What nanodoc uses of torch, of libraries and of Python without a promise that it stays: whether
each name exists, and takes the arguments that nanodoc gives. A new version of torch fails here
first, and the message says what it has changed."""

from __future__ import annotations

import ast
import importlib
import inspect
import multiprocessing.process
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from nanodoc.instrument import libraries, taps, torch_private

PACKAGE = Path(torch_private.__file__).resolve().parents[1]


def source_files() -> Iterator[Path]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "patients" not in path.parts:
            yield path


@pytest.mark.parametrize("name", sorted(torch_private.NAMES))
def test_the_name_is_there(name: str) -> None:
    path = torch_private.NAMES[name]
    found = torch_private.resolve(path)  # raises where torch has no such name
    assert found is getattr(torch_private, name)


@pytest.mark.parametrize("path", torch_private.LAZY.values())
def test_what_is_imported_later_is_there(path: str) -> None:
    assert callable(torch_private.resolve(path))


# The parameters that nanodoc relies on, of the private functions that are written in Python.
SIGNATURES = {
    "torch.autograd.graph._engine_run_backward": ("t_outputs",),
    "torch.utils._python_dispatch._push_mode": ("mode",),
    "torch.utils._python_dispatch._pop_mode": (),
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack": (),
    "torch.nn.utils.clip_grad._clip_grads_with_norm_": ("parameters", "max_norm", "total_norm"),
    "torch.nn.utils.clip_grad._get_total_norm": ("tensors",),
    "torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype": ("tensorlistlist",),
    "torch.multiprocessing.spawn._wrap": ("fn", "i", "args"),
    "torch.utils.data.dataloader._BaseDataLoaderIter._next_index": ("self",),
    "torch.autograd.backward": ("tensors", "grad_tensors", "retain_graph"),
    "torch.amp.GradScaler.step": ("self", "optimizer"),
    "torch.amp.GradScaler.unscale_": ("self", "optimizer"),
    "torch.amp.GradScaler.update": ("self", "new_scale"),
    "torch.amp.GradScaler.scale": ("self", "outputs"),
}


@pytest.mark.parametrize("path", SIGNATURES)
def test_it_takes_what_nanodoc_gives(path: str) -> None:
    first = list(inspect.signature(torch_private.resolve(path)).parameters)
    assert tuple(first[: len(SIGNATURES[path])]) == SIGNATURES[path]


@pytest.mark.parametrize("tap", taps.TABLE.values(), ids=lambda tap: f"{tap.owner}.{tap.name}")
def test_what_is_listened_to_is_there(tap: taps.Tap) -> None:
    assert callable(getattr(tap.owner, tap.name))


def _objects() -> dict[str, Any]:
    """One object of each kind that private attributes are read of, by its name in the table."""
    data = TensorDataset(torch.ones(4, 2))
    weight = torch.ones(2, requires_grad=True)
    multiplied = (weight * torch.ones(2)).grad_fn
    loss = torch.nn.functional.nll_loss(weight.view(1, 2), torch.tensor([0])).grad_fn

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

    return {
        "torch.Tensor": weight,
        "torch.amp.GradScaler": torch.amp.GradScaler("cpu"),
        "torch.autocast": torch.autocast("cpu"),
        "torch.utils.data.DataLoader": DataLoader(data),
        "a loader's iterator": iter(DataLoader(data)),
        "a node of autograd": [multiplied, loss],
        "the node of a torch.autograd.Function": Twice.apply(weight).grad_fn,
        "torch.optim.lr_scheduler.LRScheduler": torch.optim.lr_scheduler.StepLR(
            torch.optim.SGD([weight], lr=1.0), 1
        ),
        "multiprocessing.process.BaseProcess()": multiprocessing.process.BaseProcess(),
        "a named tuple": [],
    }


# They need several ranks, workers or another device to be made; tests of these use them.
MADE_ELSEWHERE = (
    "a loader's iterator with workers",
    "the reducer of a DistributedDataParallel",
    "a parameter of FullyShardedDataParallel",
    "a named tuple",
    "torch.distributed.tensor.DTensor",
    "torch.distributed.ProcessGroup",
    "torch.nn.parallel.DistributedDataParallel",
    "torch._dynamo.eval_frame.OptimizedModule",
)
ATTRIBUTES = {**torch_private.ATTRIBUTES, **libraries.ATTRIBUTES}


@pytest.mark.parametrize(
    "name", [name for name, owner in ATTRIBUTES.items() if owner not in MADE_ELSEWHERE]
)
def test_the_attribute_is_there(name: str) -> None:
    owner = ATTRIBUTES[name]
    if owner.split(".")[0] == "numpy":
        pytest.importorskip("numpy.random")
    objects = _objects()
    found = objects[owner] if owner in objects else _resolved(owner)
    several = found if isinstance(found, list) else [found]
    assert any(hasattr(each, name) for each in several)


def _resolved(path: str) -> Any:
    if path.startswith("torch."):
        return torch_private.resolve(path)
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"there is no {path}")


def test_private_names_are_in_the_two_tables() -> None:
    """Private attributes that are not nanodoc's own, and modules of `torch._C`."""
    own: set[str] = set()
    read: dict[str, str] = {}
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in source_files()}
    for tree in trees.values():
        own.update(_defined(tree))
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                read.setdefault(node.attr, f"{path.relative_to(PACKAGE)}:{node.lineno}")
    private = {
        name: place for name, place in read.items() if name not in own and not _is_special(name)
    }
    assert {n: p for n, p in private.items() if n not in ATTRIBUTES and n != "_C"} == {}


def test_the_inside_of_torch_is_named_in_few_files() -> None:
    naming = [p for p in source_files() if "torch._C" in p.read_text(encoding="utf-8")]
    assert len(naming) <= 6
    importing = [
        path
        for path in source_files()
        if path.name not in ("torch_private.py", "taps.py")
        and any(_imports_private_names(node) for node in ast.walk(ast.parse(path.read_text())))
    ]
    assert importing == []


def test_a_name_that_torch_no_longer_has_is_told_when_it_is_used() -> None:
    missing = torch_private._named("gone", "torch._C._no_such_name")
    del torch_private.NAMES["gone"]
    with pytest.raises(torch_private.MissingName, match=r"has no torch\._C\._no_such_name"):
        missing()


def _defined(tree: ast.Module) -> Iterator[str]:
    """Names that the module gives to something of its own: functions, fields, attributes of
    `self`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "watch")
        ):
            yield node.attr


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _imports_private_names(node: ast.AST) -> bool:
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("torch"):
        return False
    return "._" in (node.module or "") or any(name.name.startswith("_") for name in node.names)
