"""What a script or notebook defines, read from its source: the beginning of a recipe for it.
Nothing of the file is run, and nothing here imports torch."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from nanodoc.errors import UsageError
from nanodoc.recipe.notebook import notebook_of, parsed

_OPTIMIZERS = (
    *("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop"),
    *("Rprop", "ASGD", "LBFGS", "SparseAdam", "Adafactor"),
)
_MODELS = {"Module", "LightningModule", "PreTrainedModel"}
_LARGEST = 64 * 2**20  # bytes of a file; the outputs of a notebook count
_STARTS = ("backward", "fit", "train", "parse_args")
"""Methods that train, or read the command line, when a file with a call of them is imported."""
_DATASETS = {"Dataset", "IterableDataset", "TensorDataset"}


@dataclass(frozen=True, slots=True)
class Defined:
    """A class or a function of the file."""

    name: str
    signature: str
    place: str
    """`line 3`, or `code cell 3` of a notebook."""


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
    starts: str | None = None
    """Where importing the file starts something: `line 3`."""

    @property
    def is_notebook(self) -> bool:
        return self.file.endswith(".ipynb")


def outline(path: Path) -> Outline:
    """Raises `UsageError` for a file that cannot be read or parsed, or has no name to import."""
    try:
        return _outline(path, _content(path))
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply to be read") from error


def _outline(path: Path, content: bytes) -> Outline:
    if path.suffix == ".ipynb":
        book = notebook_of(content, path.name)
        tree, place = parsed(book.source, path.name), book.place
        found = Outline(path.name, re.sub(r"\W", "_", path.stem))
    else:
        tree, place = parsed(content, path.name), "line {}".format
        if not path.stem.isidentifier() or keyword.iskeyword(path.stem):
            raise UsageError(
                f"{path.name} cannot be imported by that name; rename it, for example to train.py"
            )
        found = Outline(path.name, path.stem)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            _class(node, place, found)
        elif isinstance(node, ast.FunctionDef):
            found.functions.append(Defined(node.name, _signature(node), place(node.lineno)))
    functions = {defined.name for defined in found.functions}
    started = next((at for node in tree.body if (at := _starts(node, functions))), None)
    found.starts = place(started) if started is not None else None
    found.optimizer = _first(tree, _is_optimizer)
    found.loader = _first(tree, lambda call: _name(call.func) == "DataLoader")
    found.loss = _loss(tree)
    return found


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    if len(content) > _LARGEST:
        raise UsageError(f"{path} is larger than {_LARGEST >> 20} MiB")
    return content


def recipe_text(found: Outline, written: Path, file: Path) -> str:
    """The file to fill in, which will be `written`: `build()` with what was found in `file`, and
    `...` where nothing was."""
    elsewhere = written.resolve().parent != file.resolve().parent
    found = replace(found, file=_shown(found.file))
    model = found.models[0] if len(found.models) == 1 else None
    names = [d.name for d in (*found.models, *found.datasets)]
    lines = [
        f'"""A recipe for nanodoc, made from {found.file}. Replace each `...`, then run',
        "",
        f"    nanodoc run {_shown(written.name)}:build",
        '"""',
        "",
        "import torch",
        *_imports(found, names, elsewhere=elsewhere),
        "",
        "",
        "def loss_fn(model, batch):",
        '    """The loss, a scalar, of the model on one batch of `data`."""',
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


def _imports(found: Outline, names: list[str], *, elsewhere: bool) -> list[str]:
    """The import of what the file defines, and what stands in its way."""
    if found.is_notebook:
        return [
            f"# {found.file} cannot be imported: copy its code here, or make a script of it with",
            "#     jupyter nbconvert --to script",
        ]
    lines = [f"from {found.module} import {', '.join(names)}"] if names else []
    if elsewhere and names:
        lines.append(f"# the folder of {found.file} must be on sys.path")
    if found.starts is not None:
        lines += [
            f"# importing {found.file} also runs the code at {found.starts}; to prevent that,",
            '# move it under `if __name__ == "__main__":`',
        ]
    return lines


def _shown(name: str) -> str:
    """A file's name in a comment or docstring, which it must not end."""
    return re.sub(r"[^\w .()+-]", "_", name)


def _starts(node: ast.stmt, functions: set[str]) -> int | None:
    """The line that starts something when the file is imported: a loop, or a call of a function of
    the file or of what trains. What stands under `if __name__ == "__main__"` does not run then."""
    if isinstance(node, (ast.For, ast.While)):
        return node.lineno
    inner: list[ast.stmt] = []
    if isinstance(node, ast.If):
        inner = node.orelse if _is_guard(node.test) else [*node.body, *node.orelse]
    elif isinstance(node, ast.With):
        inner = node.body
    elif isinstance(node, ast.Try):
        handled = [statement for handler in node.handlers for statement in handler.body]
        inner = [*node.body, *handled, *node.orelse, *node.finalbody]
    elif isinstance(node, (ast.Expr, ast.Assign)):
        if isinstance(node.value, ast.Lambda):
            return None
        called = {_name(call.func) for call in _calls(node.value)}
        return node.lineno if called & {*functions, *_STARTS} else None
    return next((at for one in inner if (at := _starts(one, functions))), None)


def _is_guard(test: ast.expr) -> bool:
    """`__name__ == "__main__"`, on either side, or with more that has to hold."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_is_guard(value) for value in test.values)
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    return {"__name__", "'__main__'"} == {
        ast.unparse(test.left),
        *map(ast.unparse, test.comparators),
    }


def _notes(kind: str, found: list[Defined], file: str) -> list[str]:
    shown = "; ".join(f"{d.name}{d.signature} ({d.place})" for d in found[:6])
    return [f"    # {kind} in {file}: {shown}"] if found else []


def _class(node: ast.ClassDef, place: Callable[[int], str], found: Outline) -> None:
    bases = {_name(base) for base in node.bases}
    made = next(
        (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None
    )
    signature = _signature(made, method=True) if made is not None else "()"
    defined = Defined(node.name, signature, place(node.lineno))
    known = {d.name for d in found.models}
    if bases & (_MODELS | known):
        found.models.append(defined)
    elif bases & _DATASETS:
        found.datasets.append(defined)


def _signature(node: ast.FunctionDef, *, method: bool = False) -> str:
    """The names of the arguments; of a method without the first, which is the instance."""
    args = node.args
    names = [a.arg for a in (*args.posonlyargs, *args.args)]
    names = names[1:] if method or names[:1] in (["self"], ["cls"]) else names
    names += [f"*{args.vararg.arg}"] if args.vararg is not None else []
    names += [a.arg for a in args.kwonlyargs]
    names += [f"**{args.kwarg.arg}"] if args.kwarg is not None else []
    return f"({', '.join(names)})"


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
