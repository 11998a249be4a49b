"""The families of names in nanodoc/vocabulary: every name exists, stands once in its family, and is
what a step's calls and ops are called; and no new tables of such names appear elsewhere."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import nanodoc
from nanodoc.trace.calls import plain_name
from nanodoc.vocabulary import calls, names, ops, source
from nanodoc.vocabulary.names import ALIASES, canonical, op_name, spelled

PACKAGE = Path(nanodoc.__file__).parent

NOT_IN_TORCH = {"astype": "a method of NumPy's arrays", "to_numpy": "a method of pandas' tables"}
"""Names that no installed torch has, with the reason."""


def families(module: ModuleType) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, its members) of each family of a module; of a mapping, its keys."""
    for name, value in vars(module).items():
        if name.isupper() and not isinstance(value, str):
            yield name, tuple(value)


def all_families() -> list[tuple[str, tuple[str, ...]]]:
    return [family for module in (calls, ops, source) for family in families(module)]


def exists(name: str) -> bool:
    """Some function, method or op of the installed torch has this name."""
    places: Iterable[object] = (torch, torch.Tensor, F, nn, torch.special, torch.linalg)
    bare = [name, f"_{name}", f"{name}_", f"__{name}__"]
    if any(hasattr(place, each) for place in places for each in bare):
        return True
    return any(hasattr(torch.ops.aten, each) for each in (*bare, f"_{name}_forward"))


@pytest.mark.parametrize(("family", "members"), all_families(), ids=[f for f, _ in all_families()])
def test_names_exist_and_stand_once(family: str, members: tuple[str, ...]) -> None:
    assert len(set(members)) == len(members), family
    unknown = [name for name in members if name not in NOT_IN_TORCH and not exists(name)]
    if family == "DRAWS":  # beginnings of names
        unknown = [start for start in members if not any(n.startswith(start) for n in dir(torch))]
    assert unknown == []


@pytest.mark.parametrize("module", [calls, ops, source, names])
def test_each_family_says_what_belongs_to_it(module: ModuleType) -> None:
    assert module.__file__ is not None
    body = ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
    told = [
        ast.unparse(node.targets[0])
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.Assign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    ]
    defined = [ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)]
    # a name that only opens a family stands right before it
    assert [name for name in defined if name not in told and name != "BINARY"] == []


def test_exceptions_are_needed() -> None:
    used = {name for _, members in all_families() for name in members}
    assert {name for name in used if not exists(name)} - {*calls.DRAWS} == set(NOT_IN_TORCH)


def test_calls_are_canonical() -> None:
    """A name that `canonical` never gives would match no call."""
    strange = [
        (family, name)
        for family, members in families(calls)
        for name in members
        if canonical(name) != name
    ]
    assert strange == []


def test_functions_of_ops_exist() -> None:
    functions = {name for group in ops.FUNCTIONS_OF.values() for name in group}
    assert [name for name in functions if not exists(name) or canonical(name) != name] == []


def test_aliases_exist_and_are_aliases() -> None:
    for alias, original in ALIASES.items():
        assert exists(alias) or alias == "floordiv", alias
        assert exists(original), original
        assert canonical(alias) == canonical(original) == original


class Named(TorchFunctionMode):
    """Remembers by which names functions were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(plain_name(func))
        return func(*args, **(kwargs or {}))


X = torch.rand(3, 3) + 0.5


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("add", [lambda: X + X, lambda: 1 + X, lambda: X.clone().add_(1), lambda: torch.add(X, X)]),
        ("sub", [lambda: X - X, lambda: 1 - X, lambda: torch.subtract(X, X)]),
        ("mul", [lambda: X * X, lambda: 2 * X, lambda: X.multiply(2), lambda: X.clone().mul_(2)]),
        ("div", [lambda: X / X, lambda: X.true_divide(2), lambda: torch.divide(X, X)]),
        ("rdiv", [lambda: 1 / X]),
        ("pow", [lambda: X**2, lambda: torch.pow(X, 2)]),
        ("rpow", [lambda: 2**X]),
        ("matmul", [lambda: X @ X, lambda: torch.linalg.matmul(X, X)]),
        ("neg", [lambda: -X, lambda: X.negative()]),
        ("abs", [lambda: abs(X), lambda: X.absolute()]),
        ("eq", [lambda: X == X, lambda: torch.eq(X, X)]),
        ("gt", [lambda: X > X, lambda: X > 1, lambda: torch.greater(X, X)]),
        ("getitem", [lambda: X[0]]),
        ("clamp", [lambda: X.clip(0, 1), lambda: X.clone().clamp_(0, 1)]),
        (
            "cat",
            [lambda: torch.cat([X]), lambda: torch.concatenate([X]), lambda: torch.concat([X])],
        ),
        ("transpose", [lambda: X.swapaxes(0, 1), lambda: X.swapdims(0, 1)]),
        ("softmax", [lambda: F.softmax(X, -1), lambda: torch.special.softmax(X, -1)]),
        ("logsigmoid", [lambda: F.logsigmoid(X)]),
        ("relu", [lambda: F.relu(X), lambda: X.clone().relu_()]),
    ],
)
def test_spellings_have_one_name(name: str, spellings: list[Callable[[], object]]) -> None:
    for spelling in spellings:
        with Named() as seen:
            spelling()
        assert seen.names[-1] == name


def test_a_failed_call_keeps_its_own_name() -> None:
    assert spelled("multiply") == spelled("multiply_") == "multiply"
    assert spelled("__rsub__") == "sub"


def test_names_of_ops() -> None:
    assert op_name("aten.add_.Tensor") == "add"
    assert op_name("aten._softmax.default") == "softmax"
    assert op_name("aten.rsub.Scalar") == "rsub"


def known_names() -> frozenset[str]:
    """Names of torch's functions, methods, ops, layers and losses."""
    places = (torch, torch.Tensor, F, nn, torch.special, torch.linalg, torch.distributed)
    found = {name for place in places for name in dir(place)} | set(dir(operator))
    found |= {
        op.removeprefix("aten::").split(".")[0] for op in torch._C._dispatch_get_all_op_names()
    }
    return frozenset(name.strip("_") for name in found)


def strings_of(value: ast.expr) -> list[str]:
    """The texts of a table; of a mapping, those of its keys."""
    keys = value.keys if isinstance(value, ast.Dict) else [value]
    return [
        node.value
        for key in keys
        if key is not None
        for node in ast.walk(key)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def name_tables() -> list[str]:
    """Module-level tuples, sets and mappings of which two texts and at least half of all are names
    of torch's, outside of the vocabulary and of what shows names to a reader."""
    known = known_names()
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        if room in ("vocabulary", "clinic", "explain", "environment", "net", "cli"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if not isinstance(value, ast.Tuple | ast.Set | ast.Dict | ast.Call | ast.BinOp):
                continue
            if isinstance(value, ast.Call) and ast.unparse(value.func) not in ("frozenset", "set"):
                continue
            texts = strings_of(value)
            of_torch = [text for text in texts if text.split(".")[-1].strip("_") in known]
            if len(of_torch) >= 2 and 2 * len(of_torch) >= len(texts):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                found.append(f"{path.relative_to(PACKAGE)}:{ast.unparse(target)}")
    return found


MOST_TABLES = 92


def test_tables_of_names_become_fewer() -> None:
    """A new one belongs into nanodoc/vocabulary, or is one of its families, less or plus a few.
    Whoever removes one lowers the number."""
    found = name_tables()
    assert len(found) <= MOST_TABLES, "\n".join(found)
