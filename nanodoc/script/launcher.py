"""Runs a script or a module as `python` would: `__main__` is a real module, `sys.argv`, `sys.path`
and `__file__` are what the script expects. Only its source, and that of the modules beside it, is
compiled with marks."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanodoc.errors import UsageError
from nanodoc.instrument.libraries import TRAINERS
from nanodoc.instrument.originals import SIDES, their_side
from nanodoc.script.loops import Loops
from nanodoc.script.marking import marked
from nanodoc.supervise.launch import Launch

OURS = str(Path(__file__).resolve().parent.parent.parent)
"""The folder that nanodoc is imported from."""


class Program:
    """A launch that is ready to run."""

    def __init__(self, launch: Launch, loops: Loops) -> None:
        """Raises `UsageError` where there is nothing of that name."""
        self._loops = loops
        spec = _module_spec(launch.target) if launch.module else None
        path = spec.origin if spec is not None and spec.origin is not None else launch.target
        try:
            self._source = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        root = os.getcwd() if launch.module else os.path.dirname(os.path.abspath(path))
        self.root = os.path.realpath(root)
        self._spec, self._path = spec, os.path.abspath(path)
        self._argv = [os.path.abspath(path) if launch.module else path, *launch.arguments]
        self.module = types.ModuleType("__main__")
        SIDES.bind()

    def run(self) -> None:
        """Runs it; raises whatever it raises."""
        if not sys.flags.safe_path and sys.path:
            sys.path[0] = self.root
        elif not sys.flags.safe_path:
            sys.path.insert(0, self.root)
        if importlib.util.find_spec("nanodoc") is None:
            sys.path.append(OURS)
        sys.argv = list(self._argv)
        mark_below(self.root, self._loops)
        spec = self._spec
        vars(self.module).update(
            __file__=self._path,
            __spec__=spec,
            __package__=spec.parent if spec is not None else None,
            __loader__=importlib.machinery.SourceFileLoader("__main__", self._path),
            __builtins__=__builtins__,
            __cached__=None,
            __doc__=None,
        )
        sys.modules["__main__"] = self.module
        with their_side():
            exec(_code(self._loops, self._source, self._path, False), vars(self.module))


def mark_below(root: str, loops: Loops) -> None:
    """Has the modules below a folder, and trainers, that are imported from now on compiled with
    marks."""
    sys.meta_path.insert(0, _Finder(loops, root + os.sep))


def run_marked(path: str, run_name: str, loops: Loops) -> dict[str, Any]:
    """As `runpy.run_path`, with marks: the globals of the file when it has run."""
    module = types.ModuleType(run_name)
    vars(module).update(__file__=path, __builtins__=__builtins__, __cached__=None)
    before, sys.modules[run_name] = sys.modules.get(run_name), module
    called, sys.argv[0] = sys.argv[0], path
    try:
        exec(_code(loops, Path(path).read_bytes(), path, False), vars(module))
    finally:
        sys.argv[0] = called
        if before is None:
            del sys.modules[run_name]
        else:
            sys.modules[run_name] = before
    return vars(module)


def marked_trainers() -> Loops:
    """Has the trainers that are imported from now on compiled with marks, which do nothing until a
    session is there."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return finder.loops
    loops = Loops()
    sys.meta_path.insert(0, _Finder(loops, None))
    return loops


def known_loops() -> Loops:
    """Those of the modules that have been marked, to which more can be added."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return Loops(list(finder.loops.all), dict(finder.loops.by_file))
    return Loops()


def _module_spec(name: str) -> importlib.machinery.ModuleSpec:
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        raise UsageError(f"no module named {error.name}") from error
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise UsageError(f"no module named {name}, or its Python source is missing")
    return spec


def _code(loops: Loops, source: bytes, path: str, of_library: bool) -> Any:
    """The marked code; as it is where it cannot be marked. Raises as compile() does."""
    try:
        return marked(loops, source, path, of_library=of_library)
    except (RecursionError, ValueError):
        return compile(source, path, "exec", dont_inherit=True)


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles with marks, never from nor to the caches of compiled files."""

    def __init__(self, name: str, path: str, loops: Loops) -> None:
        super().__init__(name, path)
        self._loops = loops

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return _code(self._loops, self.get_data(path), path, fullname in TRAINERS)


class _Finder:
    """Stands before the other finders for modules below the script's folder and for trainers."""

    def __init__(self, loops: Loops, root: str | None) -> None:
        """`root`: the folder of the script, with a separator; None marks trainers only."""
        self.loops = loops
        self._root = root
        self._installed = tuple(
            os.path.realpath(sysconfig.get_path(name)) + os.sep
            for name in ("stdlib", "platstdlib", "purelib", "platlib")
        )

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if self._root is None and name not in TRAINERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            return None
        if type(spec.loader) is not importlib.machinery.SourceFileLoader:
            return None
        if name in TRAINERS or self._beside(os.path.realpath(spec.origin)):
            spec.loader = _Loader(name, spec.origin, self.loops)
            return spec
        return None

    def _beside(self, file: str) -> bool:
        ours = os.path.join(OURS, "nanodoc") + os.sep
        return (
            self._root is not None
            and file.startswith(self._root)
            and not file.startswith((*self._installed, ours))
            and "site-packages" not in file
        )
