"""What can be said of a run's target, FILE.py:NAME or a script, without running it: whether it is
there, is Python, and defines the name. Nothing here imports torch."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from nanodoc.errors import UsageError

_OTHER_KINDS = {
    (".ipynb",): "is a notebook; `nanodoc init {}` writes a recipe from its cells, and "
    "`with nanodoc.watch() as watch:` watches a loop inside it",
    (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".whl"): "is an archive; unpack "
    "it, then: nanodoc run FOLDER/train.py",
    (".pt", ".pth", ".ckpt", ".safetensors"): "is a file of tensors, not a script; for a snapshot "
    "of nanodoc's: nanodoc replay {}",
    (".yaml", ".yml", ".toml"): "is a configuration, not a script; its options go before the "
    "script: nanodoc run --config {} train.py",
    (".json", ".html"): "is not a script; to show a report: nanodoc view {}",
    (".log", ".txt", ".out", ".err"): "is not a script; to explain the error in it: nanodoc "
    "explain {}",
    (".sh", ".bash", ".slurm"): "is a shell script; give the Python script that it starts: nanodoc "
    "run train.py",
}
"""What to type for files that are no script, by their suffix."""


def split_entrypoint(entrypoint: str) -> tuple[Path, str]:
    """`"train.py:build"` as its path and name; the name defaults to `build`. Raises
    `UsageError`."""
    file, colon, name = entrypoint.rpartition(":")
    # no name, or only a Windows drive letter
    if not colon or (len(file) == 1 and name.startswith(("\\", "/"))):
        file, name = entrypoint, "build"
    if not file or not name.isidentifier():
        raise UsageError(
            f"entrypoint {entrypoint!r} is not FILE.py:NAME, for example train.py:build"
        )
    return Path(file), name


def names_a_function(target: str) -> bool:
    """True for FILE.py:NAME, false for a path alone, a Windows path among them."""
    file, colon, name = target.rpartition(":")
    return bool(colon) and not (len(file) == 1 and name.startswith(("\\", "/")))


def check_recipe(entrypoint: str, command: str) -> None:
    """Raises `UsageError` where FILE.py:NAME cannot be the recipe of `command`: the file is missing
    or is no Python, or defines no such name."""
    path, name = split_entrypoint(entrypoint)
    tree = checked_file(path, command)
    names = None if tree is None else defined_names(tree)
    if tree is None or names is None or name in names:
        return
    near = get_close_matches(name, names, 1)
    said = f"{path} has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    if command == "run" and defines_only(path) is None:
        said += f"; to run the file as a script, use: nanodoc run {path}"
    elif not near:
        said += (
            f"; {command} needs a function that returns what to train: nanodoc init {path} writes "
            "one to fill in"
        )
    raise UsageError(said)


def check_script(target: str) -> None:
    """Raises `UsageError` where a file cannot be run as a training script: it is missing, is no
    Python, or only defines things."""
    path = Path(target)
    if checked_file(path, "run") is None:
        return
    only = defines_only(path)
    if only is None:
        return
    missing = missing_import(path)
    if missing is not None:
        line, module = missing
        raise UsageError(
            f"{path}:{line} imports {module}, which this Python does not have ({sys.executable}); "
            "install it, or activate the environment that has it"
        )
    raise UsageError(
        f"{path} trains nothing when it is run: {only}; give the script that trains, or a function "
        f"that returns what to train ({path}:NAME); nanodoc init {path} writes one to fill in"
    )


def check_module(name: str) -> None:
    """Raises `UsageError` where there is no such module for `-m`; only its first part is looked up,
    since the rest would have to be imported."""
    top = name.partition(".")[0]
    file = name.endswith(".py") and Path(name).is_file()
    if file or not all(part.isidentifier() for part in name.split(".")):
        hint = f"; for a file: nanodoc run {name}" if file else ""
        raise UsageError(f"-m {name}: this is not the name of a module{hint}")
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):  # an import hook of somebody's; -m will tell
        return
    finally:
        sys.path.pop(0)
    if found is None:
        raise UsageError(f"no module named {top} (looked in {Path.cwd()} and in {sys.prefix})")


def checked_file(path: Path, command: str) -> ast.Module | None:
    """The syntax tree of a Python file; None where it cannot be told. Raises `UsageError` where it
    is missing, a folder, of another kind, or no Python."""
    try:
        there = path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be searched
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    if there and path.is_dir():
        inside = sorted(one.name for one in path.glob("*.py"))
        usual = [name for name in ("train.py", "main.py") if name in inside]
        one = path / [*usual, *inside, "train.py"][0]
        raise UsageError(f"{path} is a folder; give a file in it: nanodoc {command} {one}")
    if not there:
        raise UsageError(_missing(path, command))
    for suffixes, said in _OTHER_KINDS.items():
        if path.suffix.lower() in suffixes:
            raise UsageError(f"{path} {said.format(path)}")
    if not path.is_file():  # a pipe can be read once
        return None
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        shown = (error.text or "").strip()
        place = f"{path}:{error.lineno}" if error.lineno else str(path)
        raise UsageError(
            f"syntax error in {place}: {error.msg}" + (f": {shown}" if shown else "")
        ) from error
    except ValueError as error:  # null bytes
        raise UsageError(f"{path} is not a Python file: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except RecursionError:
        return None


def _missing(path: Path, command: str) -> str:
    said, folder, others = f"no such file: {path}", path.parent, []
    with contextlib.suppress(OSError):  # a folder that is gone, or may not be read
        said += f" (looked in {Path.cwd()})"
        others = [one.name for one in folder.iterdir() if one.is_file()]
    near = get_close_matches(path.name, others, 1)
    if near:
        return f"{said}; did you mean {folder / near[0]}?"
    parts = path.name.split(".")
    dotted = len(parts) > 1 and all(part.isidentifier() for part in parts)
    known = path.suffix == ".py" or any(path.suffix in kinds for kinds in _OTHER_KINDS)
    if command == "run" and path.name == str(path) and dotted and not known:
        return f"{said}; for a module use: nanodoc run -m {path}"
    return said


_DYNAMIC = ("globals", "locals", "exec", "eval", "setattr", "vars")


def defined_names(tree: ast.Module) -> set[str] | None:
    """The names that a module may have once it is imported, those under a main guard among them;
    None where its source does not tell (a star import, `globals()`, `exec`, a `__getattr__` of the
    module)."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(name.name == "*" for name in node.names):
            return None
        if isinstance(node, ast.Name) and node.id in _DYNAMIC:
            return None
        if isinstance(node, ast.Attribute) and node.attr in ("modules", "__dict__"):
            return None
        if isinstance(node, ast.Global):
            found.update(node.names)
    for node in _executed(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update((name.asname or name.name).partition(".")[0] for name in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
    return None if "__getattr__" in found else found


def _executed(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    """What runs when the module is imported, without the bodies of what it defines."""
    waiting: list[ast.AST] = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def is_main_guard(node: ast.AST) -> bool:
    """An `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


_HARMLESS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)


def defines_only(path: Path) -> str | None:
    """What a file defines that does nothing when it is run, as a sentence; None of one that does
    something, or that cannot be read."""
    tree = tree_of(path)
    if tree is None:
        return None
    own = frozenset(
        name
        for node in tree.body
        for name in (
            [node.name]
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            else [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if name[:1].islower()  # a class that is made trains nothing
    )
    if not all(_is_harmless(node, own) for node in tree.body):
        return None
    functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    classes = [n.name for n in tree.body if isinstance(n, ast.ClassDef)]
    found = [
        f"{kind} {', '.join(names[:6])}"
        for kind, names in (("functions", functions), ("classes", classes))
        if names
    ]
    return f"it only defines {' and '.join(found) or 'names'}"


def _is_harmless(node: ast.stmt, own: frozenset[str]) -> bool:
    """It runs nothing that could train: a definition, or a value that needs none of the file's
    `own` functions and no method of a value."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
        return not any(_may_train(function, own) for function in calls)
    return isinstance(node, _HARMLESS)


def _may_train(function: ast.expr, own: frozenset[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in own
    return isinstance(function, ast.Attribute) and function.attr in ("fit", "train", "run", "main")


def missing_import(path: Path) -> tuple[int, str] | None:
    """(line, module) of the first module that the file's own level imports and that is not
    installed; modules beside the file are found."""
    tree = tree_of(path)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        for node in tree.body if tree is not None else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                if not _is_installed(name.partition(".")[0]):
                    return node.lineno, name
    finally:
        sys.path.pop(0)
    return None


def _is_installed(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):  # an import hook of somebody's
        return True


def tree_of(path: Path) -> ast.Module | None:
    """The syntax tree of a file; None where it is missing or is no Python."""
    try:
        return ast.parse(path.read_bytes(), str(path)) if path.is_file() else None
    except (SyntaxError, ValueError, OSError, RecursionError):
        return None
