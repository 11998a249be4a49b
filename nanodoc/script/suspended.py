"""Loops in generators and coroutines. An iteration that is run again cannot be suspended: what a
`yield` or an `await` of it came to is kept while the script runs, and given again. A coroutine that
trained is run again instead, as far as it does not wait for anything."""

from __future__ import annotations

import ast
import dis
from collections.abc import Callable, Iterable, Iterator
from inspect import CO_COROUTINE, CO_GENERATOR
from types import CodeType
from typing import Any, NoReturn

from nanodoc.script.outside import Drawings, Outside, StopReplay
from nanodoc.trace.files import USER, frame_kind

SUSPENSIONS = "__nanodoc_suspensions__"
"""The name by which a marked source calls what this module does."""

_EXPRESSIONS = (ast.Yield, ast.YieldFrom, ast.Await)
_STATEMENTS = (ast.AsyncFor, ast.AsyncWith)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)
_OTHER_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
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
        if not mine or self._outside.given is not None:
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


def again(function: Any) -> Callable[..., Any]:
    """In the place of a coroutine function or a generator function of the script's own that is
    awaited, or delegated to: runs through. Raises `StopReplay` for all others, before a coroutine
    is made that nobody awaits, and for a coroutine that awaits: a queue would give what it holds
    for a second time."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or frame_kind(code.co_filename) != USER:
        refused()
    if not (code.co_flags & CO_GENERATOR or (code.co_flags & CO_COROUTINE and not _awaits(code))):
        refused()

    def through(*args: Any, **kwargs: Any) -> Any:
        running = function(*args, **kwargs)
        while True:  # nobody is told what a generator yields
            try:
                running.send(None)
            except StopIteration as ended:
                return ended.value

    return through


def _awaits(code: CodeType) -> bool:
    waits = {"GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH"}
    return any(one.opname in waits for one in dis.get_instructions(code))


def refused() -> NoReturn:
    """In the place of what trained and can't be run again."""
    raise StopReplay("it waits for something")


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
        # what a loop inside this one has kept already
        if _is_kept(node) or isinstance(node, ast.GeneratorExp):
            return node
        # a comprehension has a frame of its own
        whole = isinstance(node, _COMPREHENSIONS) and is_suspended(node)
        node = node if whole else super().visit(node)
        if whole or isinstance(node, _EXPRESSIONS):
            suspended: Any = node
            return _at(_call("after", _call("before"), suspended), suspended)
        return node


class _Given(_OwnCode):
    def visit(self, node: Any) -> Any:
        if not _is_kept(node):
            return super().visit(node)
        suspension = node.args[1]
        run: ast.expr = _call("refused")
        if isinstance(suspension, ast.Yield):
            value = self.visit(suspension.value) if suspension.value else ast.Constant(None)
            # the one it is yielded to has nothing to say
            pair = ast.Tuple([value, ast.Constant(None)], ast.Load())
            run = ast.Subscript(pair, ast.Constant(1), ast.Load())
        elif isinstance(getattr(suspension, "value", None), ast.Call):
            called: Any = self.generic_visit(suspension.value)
            run = ast.Call(_call("again", called.func), called.args, called.keywords)
        return _at(ast.IfExp(_call("is_given"), _call("given"), run), node)


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
