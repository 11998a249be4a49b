"""What a training file defines, read from its source: the beginning of a recipe for it. Nothing of
the file is run, and nothing here imports torch."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nanodoc.errors import UsageError

_OPTIMIZERS = (
    *("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop"),
    *("Rprop", "ASGD", "LBFGS", "SparseAdam", "Adafactor"),
)
_MODELS = {"Module", "LightningModule", "PreTrainedModel"}
_DATASETS = {"Dataset", "IterableDataset", "TensorDataset"}


@dataclass(frozen=True, slots=True)
class Defined:
    """A class or a function of the file."""

    name: str
    signature: str
    line: int


@dataclass(slots=True)
class Outline:
    """What was found."""

    file: str
    module: str
    models: list[Defined] = field(default_factory=list)
    datasets: list[Defined] = field(default_factory=list)
    functions: list[Defined] = field(default_factory=list)
    optimizer: str | None = None
    loss: str | None = None
    loader: str | None = None
    guarded: bool = True
    """Importing the file only defines things."""


def outline(path: Path) -> Outline:
    """Raises `UsageError` for a file that cannot be read or parsed, or has no name to import."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not Python that can be parsed: {error}") from error
    if not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        raise UsageError(f"{path.name} cannot be imported by its name; rename it, such as train.py")
    found = Outline(path.name, path.stem)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            _class(node, found)
        elif isinstance(node, ast.FunctionDef):
            found.functions.append(Defined(node.name, _signature(node), node.lineno))
    found.guarded = not any(_runs(node, {d.name for d in found.functions}) for node in tree.body)
    found.optimizer = _first(tree, _is_optimizer)
    found.loader = _first(tree, lambda call: _name(call.func) == "DataLoader")
    found.loss = _loss(tree)
    return found


def recipe_text(found: Outline, written: Path, file: Path) -> str:
    """The file to fill in, which will be `written`: `build()` with what was found in `file`, and
    `...` where nothing was."""
    elsewhere = written.resolve().parent != file.resolve().parent
    model = found.models[0] if len(found.models) == 1 else None
    names = [d.name for d in (*found.models, *found.datasets)]
    lines = [
        f'"""A recipe for nanodoc, begun from {found.file}. Fill in each `...`, then',
        "",
        f"    nanodoc run {written.name}:build",
        '"""',
        "",
        "import torch",
        *([f"from {found.module} import {', '.join(names)}"] if names else []),
        *(["# the folder of that file has to be on sys.path"] if elsewhere and names else []),
        *([] if found.guarded else [f"# importing {found.file} runs it: put what trains there"]),
        *([] if found.guarded else ['# under `if __name__ == "__main__":`']),
        "",
        "",
        "def loss_fn(model, batch):",
        '    """A scalar, from the model and one batch of `data`."""',
        *([f"    # {found.file} has: {found.loss}"] if found.loss else []),
        "    ...",
        "",
        "",
        "def build():",
        "    torch.manual_seed(0)",
        *_notes("models", found.models, found.file),
        f"    model = {model.name}(...)" if model else "    model = ...",
        *_notes("datasets", found.datasets, found.file),
        *_notes("functions", found.functions, found.file),
        *([f"    # {found.file} has: {found.loader}"] if found.loader else []),
        "    data = ...  # a DataLoader, or a list of batches",
        *([f"    # {found.file} has: {found.optimizer}"] if found.optimizer else []),
        "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)",
        '    return {"model": model, "data": data, "loss_fn": loss_fn, "optimizer": optimizer}',
    ]
    return "\n".join(lines) + "\n"


def _runs(node: ast.stmt, functions: set[str]) -> bool:
    """The statement does something when the file is imported."""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return "__name__" not in ast.unparse(node.test) and any(
            _runs(inner, functions) for inner in (*node.body, *node.orelse)
        )
    if isinstance(node, ast.Assign):
        return isinstance(node.value, ast.Call) and _name(node.value.func) in functions
    return isinstance(node, (ast.For, ast.While, ast.With, ast.Try))


def _notes(kind: str, found: list[Defined], file: str) -> list[str]:
    shown = "; ".join(f"{d.name}{d.signature} (line {d.line})" for d in found[:6])
    return [f"    # {kind} in {file}: {shown}"] if found else []


def _class(node: ast.ClassDef, found: Outline) -> None:
    bases = {_name(base) for base in node.bases}
    made = next(
        (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None
    )
    defined = Defined(node.name, _signature(made) if made is not None else "()", node.lineno)
    known = {d.name for d in found.models}
    if bases & (_MODELS | known):
        found.models.append(defined)
    elif bases & _DATASETS:
        found.datasets.append(defined)


def _signature(node: ast.FunctionDef) -> str:
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return f"({', '.join(n for n in names if n != 'self')})"


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _first(tree: ast.AST, wanted: Callable[[ast.Call], bool]) -> str | None:
    return next((_on_a_line(call) for call in _calls(tree) if wanted(call)), None)


def _is_optimizer(call: ast.Call) -> bool:
    return _name(call.func) in _OPTIMIZERS


def _loss(tree: ast.AST) -> str | None:
    """The assignment of what `backward()` is called on."""
    for call in _calls(tree):
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr == "backward":
            name = function.value.id if isinstance(function.value, ast.Name) else None
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and name in {_name(t) for t in node.targets}:
                    return _on_a_line(node)
    return None


def _on_a_line(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:160]


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
