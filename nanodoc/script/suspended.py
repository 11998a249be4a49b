"""Loops in generators and coroutines. An iteration that is run again cannot be suspended: what a
`yield` or an `await` of it came to is kept while the script runs, and given again. A coroutine that
trained is run again instead, as far as it does not wait for anything."""

from __future__ import annotations

import ast
import contextlib
import dis
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, CoroutineType
from typing import Any

from nanodoc.script.outside import Drawings, Outside, StopReplay
from nanodoc.trace.files import USER, frame_kind

SUSPENSIONS = "__nanodoc_suspensions__"
"""The name by which a marked source calls what this module does."""

_EXPRESSIONS = (ast.Yield, ast.YieldFrom, ast.Await)
_STATEMENTS = (ast.AsyncFor, ast.AsyncWith)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)
_OTHER_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_TASKS = ("create_task", "call_soon", "call_at", "run_in_executor")
_RAN = "__nanodoc_ran__"
"""In the place of a value: what was suspended trained, and is to be run again."""
Before = tuple[int, list[tuple[Drawings, int]]]
"""(backward passes and optimizer steps so far, how much each iteration had drawn)"""


class Suspensions:
    """What suspensions of the script's own loops come to."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def before(self, code: CodeType) -> Before | None:
        """A loop of this code is about to be suspended. Until that is over, it counts as something
        that trains: that may be when the step is run again. None where nobody keeps what it comes
        to."""
        mine = [sink for sink in self._outside.sinks if sink.code is code]
        if not mine:
            return None
        before = self._outside.trainings, [(sink, len(sink)) for sink in mine]
        self._outside.keep(_RAN, mine)
        return before

    def after(self, before: Before, value: Any) -> None:
        """What a suspension came to. What was drawn meanwhile is not drawn again, unless that
        trained."""
        trainings, lengths = before
        if self._outside.trainings == trainings:
            for sink, length in lengths:
                while len(sink) > length:
                    sink.pop()
            self._outside.keep(value, [sink for sink, _ in lengths])

    def is_given(self) -> bool:
        """In an iteration that is run again: the value is known."""
        given = self._outside.given
        if given and isinstance(given[0][1], str) and given[0][1] == _RAN:
            given.popleft()
            return False
        return True

    def given(self) -> Any:
        """The value of then."""
        return self._outside.draw(_nothing)


@contextlib.contextmanager
def no_new_tasks() -> Iterator[None]:
    """Around an iteration that is run again: what it would give to the event loop ends it."""
    loop = asyncio._get_running_loop() if (asyncio := sys.modules.get("asyncio")) else None
    inside, kind, undo = True, type(loop), []

    def refusing(original: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            if inside:
                raise StopReplay("it starts a task")
            return original(*args, **kwargs)  # a loop may have kept the method

        return called

    try:
        for name in _TASKS if loop is not None else ():
            own = vars(kind).get(name)
            try:
                setattr(kind, name, refusing(getattr(kind, name)))
            except TypeError:  # a loop that is written in C
                raise StopReplay("its event loop cannot be held") from None
            undo.append((name, own))
        yield
    finally:
        inside = False
        for name, own in undo:
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)


def awaited(coroutine: Any) -> Any:
    """What a coroutine of the script's own comes to that awaits nothing itself. Raises `StopReplay`
    for all others: a queue would give what it holds for a second time."""
    if not isinstance(coroutine, CoroutineType) or not _runs_through(coroutine.cr_code):
        if hasattr(coroutine, "close"):
            coroutine.close()
        raise StopReplay("it waits for something")
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise StopReplay("it waits for something")


def _runs_through(code: CodeType) -> bool:
    waits = {"GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH"}
    own = frame_kind(code.co_filename) == USER
    return own and not any(one.opname in waits for one in dis.get_instructions(code))


def refused() -> Any:
    """In the place of what trained and can't be run again."""
    raise StopReplay("it waits for something")


def exhausted(generator: Any) -> Any:
    """What a `yield from` comes to; nobody is told what it yields."""
    values = iter(generator)
    while True:
        try:
            next(values)
        except StopIteration as ended:
            return ended.value


def _nothing() -> Any:
    raise StopReplay("it would be suspended")


# -- in the source ---------------------------------------------------------------------------------


def is_suspended(loop: ast.AST) -> bool:
    """Its own code, without functions inside of it, yields or awaits."""
    return any(
        isinstance(node, (*_EXPRESSIONS, *_STATEMENTS))
        or (isinstance(node, ast.comprehension) and bool(node.is_async))
        for node in _own([loop])
    )


def can_be_run_again(loop: ast.For | ast.While | ast.AsyncFor) -> bool:
    """Each of its suspensions has a value; an `async with` or an inner `async for` has none, and
    neither has a condition that is asked again and again."""
    inner = list(_own(loop.body))
    if isinstance(loop, ast.While) and is_suspended(loop.test):
        return False
    return not any(
        isinstance(node, _STATEMENTS)
        or (isinstance(node, ast.GeneratorExp) and is_suspended(node))
        or (isinstance(node, ast.While) and is_suspended(node.test))
        for node in inner
    )


def with_values_kept(body: Iterable[ast.stmt]) -> list[ast.stmt]:
    """A loop's body whose suspensions tell what they came to."""
    return [_Kept().visit(statement) for statement in body]


def as_run_again(body: Iterable[ast.stmt]) -> list[ast.stmt]:
    """The body of such a loop without its suspensions."""
    return [_Given().visit(statement) for statement in body]


class _OwnCode(ast.NodeTransformer):
    """Leaves the functions inside of a function alone."""

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _OTHER_SCOPES) else super().visit(node)


class _Kept(_OwnCode):
    def visit(self, node: ast.AST) -> Any:
        if _is_kept(node) or isinstance(
            node, ast.GeneratorExp
        ):  # a loop inside a loop has been here
            return node
        # a comprehension has a frame of its own
        whole = isinstance(node, _COMPREHENSIONS) and is_suspended(node)
        node = node if whole else super().visit(node)
        if whole or isinstance(node, _EXPRESSIONS):
            suspended: Any = node
            return _at(_call("after", _call("before"), suspended), suspended)
        return node


class _Given(_OwnCode):
    def visit(self, node: ast.AST) -> Any:
        if not _is_kept(node):
            return super().visit(node)
        assert isinstance(node, ast.Call)
        suspension: Any = node.args[1]
        if isinstance(suspension, _COMPREHENSIONS):
            return _at(ast.IfExp(_call("is_given"), _call("given"), _call("refused")), node)
        suspension = self.generic_visit(suspension)
        again: ast.expr = suspension.value or ast.Constant(None)
        if isinstance(suspension, ast.Await):
            again = _call("awaited", again)
        elif isinstance(suspension, ast.YieldFrom):
            again = _call("exhausted", again)
        else:  # the one it is yielded to has nothing to say
            again = ast.Subscript(
                ast.Tuple([again, ast.Constant(None)], ast.Load()), ast.Constant(1), ast.Load()
            )
        return _at(ast.IfExp(_call("is_given"), _call("given"), again), node)


def _is_kept(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == SUSPENSIONS
    )


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    called = ast.Attribute(ast.Name(SUSPENSIONS, ast.Load()), name, ast.Load())
    return ast.Call(called, list(arguments), [])


def _at(node: ast.expr, where: ast.AST) -> ast.expr:
    """Its new nodes stand where the old one stood."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.expr) and not hasattr(inner, "lineno"):
            ast.copy_location(inner, where)
    return node


def _own(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        if not isinstance(node, _OTHER_SCOPES):
            yield node
            yield from _own(ast.iter_child_nodes(node))
