"""What holds for the whole package, whoever adds to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import nanodoc

PACKAGE = Path(nanodoc.__file__).parent


def test_imports_keep_the_floors(capsys: pytest.CaptureFixture[str]) -> None:
    """The contracts of pyproject.toml: floors, no circles, what never reaches torch, what rules
    see."""
    failed = lint_imports(config_filename=str(PACKAGE.parent / "pyproject.toml"), no_cache=True)
    assert not failed, capsys.readouterr().out


def test_one_package_replaces_functions_of_torch() -> None:
    """Everywhere else a `Tap` of `nanodoc.instrument` is listened to: it has one policy of putting
    back, and its wrapper is looked through when the user's line is sought."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = path.relative_to(PACKAGE).parts[0]
        if folder in ("instrument", "clinic"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            replaces = isinstance(node, ast.Assign) and any(map(_is_of_torch, node.targets))
            hooks = isinstance(node, ast.Name) and node.id.startswith("register_optimizer_step")
            if replaces or hooks:
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    # a property is no function: it is read and written
    assert [place for place in found if "recipe/build_watch.py" not in place] == []


def _is_of_torch(target: ast.AST) -> bool:
    while isinstance(target, ast.Attribute):
        target = target.value
        if isinstance(target, ast.Name):
            return target.id in ("torch", "GradScaler", "warnings", "clip_grad", "builtins")
    return False


def _names_cuda(tree: ast.AST) -> Iterator[int]:
    """Lines that reach for CUDA: `torch.cuda`, the same of a module under another name, an import
    of it."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "cuda"
            and isinstance(node.value, ast.Name)
        ):
            yield node.lineno
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("torch")
            and any("cuda" in name.name for name in node.names)
        ):
            yield node.lineno
        if isinstance(node, ast.Import | ast.ImportFrom) and "torch.cuda" in ast.unparse(node):
            yield node.lineno


def test_cuda_is_named_in_one_file() -> None:
    """Every other device would be forgotten there. Everything else asks `nanodoc.accelerator`."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if path.name == "cuda.py" and path.parent == PACKAGE:
            assert "torch.cuda" in source
            continue
        found += [
            f"{path.relative_to(PACKAGE)}:{number}"
            for number, line in enumerate(source.splitlines(), 1)
            if "torch.cuda" in line
        ]
        # `one.cuda` of a rank's facts is a field; `from nanodoc import cuda` is that one file
        fields = {"compare.py", "record.py"}
        found += [
            f"{path.relative_to(PACKAGE)}:{line}"
            for line in _names_cuda(ast.parse(source))
            if path.name not in fields
        ]
    assert found == []


def test_one_place_calls_the_users_step() -> None:
    """Whatever runs a step again does it by `run_step`: what else it must watch or put back is not
    forgotten."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if "clinic" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("train_step", "loss_fn", "criterion", "_call_train_step"):
                found.append(str(path.relative_to(PACKAGE)))
    assert set(found) == {"replay/step.py"}


LONGEST_FILE, LONGEST_FUNCTION = 800, 60


def test_files_and_functions_fit_on_a_page() -> None:
    """Lines; what ruff counts (complexity, parameters, statements) is in pyproject.toml."""
    too_long = []
    for path in sorted([*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "benchmarks").rglob("*.py")]):
        source = path.read_text(encoding="utf-8")
        if source.count("\n") > LONGEST_FILE:
            too_long.append(str(path))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > LONGEST_FUNCTION and (path.name, node.name) not in EXCEPTIONS:
                    too_long.append(f"{path}:{node.name} has {lines} lines")
    assert too_long == []


EXCEPTIONS = {("tracer.py", "__torch_dispatch__"): "the hot path: a call an op costs more"}
"""Functions that may be longer, with the reason."""
