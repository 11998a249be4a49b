"""What an operator is, and what several of them look for in a source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.mutations.source import Mutation, Source, last_name

Find = Callable[[Source], Iterator[Mutation]]
LOSSES = re.compile(
    r"^(cross_entropy|nll_loss|mse_loss|l1_loss|smooth_l1_loss|huber_loss|ctc_loss|kl_div|"
    r"binary_cross_entropy|binary_cross_entropy_with_logits|triplet_margin_loss|"
    r"cosine_embedding_loss|\w*criterion\w*|loss_f\w*|\w*_loss_fn|mse|bce|ctc|xent)$"
)
NETWORKS = re.compile(
    r"(model|net|network|encoder|decoder|policy|actor|critic|student|generator|discriminator|"
    r"unet|denoiser|tower|agent|backbone)\d?$"
)


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of mistake."""

    kind: str
    name: str
    find: Find
    """All sites of it in a source, in the order of the text."""


OPERATORS: dict[str, Operator] = {}


def operator(kind: str, name: str) -> Callable[[Find], Find]:
    """Registers the function as an operator."""

    def add(find: Find) -> Find:
        OPERATORS[name] = Operator(kind, name, find)
        return find

    return add


def calls(source: Source, names: str, *, quiet: bool = False) -> Iterator[ast.Call]:
    """Calls of functions and methods whose last name matches the whole pattern."""
    pattern = re.compile(names)
    for node in source.nodes(ast.Call, quiet=quiet):
        if pattern.fullmatch(last_name(node.func)):
            yield node


def methods(source: Source, names: str, *, quiet: bool = False) -> Iterator[ast.Call]:
    """The same of methods and functions of modules, with the receiver at hand."""
    for node in calls(source, names, quiet=quiet):
        if isinstance(node.func, ast.Attribute):
            yield node


def receiver(call: ast.Call) -> ast.expr:
    """What a method is called on."""
    assert isinstance(call.func, ast.Attribute)
    return call.func.value


def on_a_tensor(call: ast.Call) -> bool:
    """The method is called on a value, not on a module such as `torch` or `F`."""
    return last_name(receiver(call)) not in ("torch", "F", "nn", "np", "math", "functional", "init")


def keyword(call: ast.Call, *names: str) -> ast.expr | None:
    """The value of the first of these keywords."""
    return next((one.value for one in call.keywords if one.arg in names), None)


def axis(call: ast.Call, position: int) -> ast.expr | None:
    """The axis that a call is given as a number, by keyword or at this position."""
    found = keyword(call, "dim", "axis")
    if found is None and len(call.args) > position:
        found = call.args[position]
    return found if found is not None and number(found) is not None else None


def number(node: ast.AST) -> float | None:
    """The number that a constant says, with its sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return None if isinstance(node.value, bool) else node.value
    return None


def losses(source: Source) -> Iterator[ast.Call]:
    """Calls of a criterion with a prediction and a target."""
    for node in source.nodes(ast.Call):
        if LOSSES.match(last_name(node.func)) and len(node.args) >= 2:
            if not any(isinstance(one, ast.Starred) for one in node.args):
                yield node


def network_calls(source: Source) -> Iterator[ast.Call]:
    """Calls of a network with at least one input."""
    for node in source.nodes(ast.Call):
        if NETWORKS.search(last_name(node.func)) and node.args:
            if not isinstance(node.args[0], ast.Starred):
                yield node


def is_loss_expression(source: Source, statement: ast.stmt) -> bool:
    """The statement computes a loss or a term of one, by the name that it is given."""
    pattern = r"loss|objective|penalty|cost|elbo|(^|_)kl|kld|(^|_)err"
    if isinstance(statement, ast.Assign):
        target: ast.AST = statement.targets[0]
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        target = statement.target
    elif isinstance(statement, ast.Return):
        return source.within(statement, pattern)
    else:
        return False
    return bool(re.search(pattern, last_name(target).lower()))


def loss_sums(source: Source) -> Iterator[ast.BinOp]:
    """Sums and differences of terms in the computation of a loss."""
    for node in source.nodes(ast.BinOp):
        if not isinstance(node.op, ast.Add | ast.Sub) or number(node.right) is not None:
            continue
        parent = source.parents[node]
        if isinstance(parent, ast.Subscript | ast.Slice) or number(node.left) is not None:
            continue
        if last_name(parent) in ("pow", "abs", "square"):  # an error, not a sum of terms
            continue
        if is_loss_expression(source, source.statement(node)):
            yield node


def bare_calls(source: Source, names: str, *, quiet: bool = False) -> Iterator[ast.Expr]:
    """Statements that are nothing but a call of such a name."""
    pattern = re.compile(names)
    for node in source.nodes(ast.Expr, quiet=quiet):
        if isinstance(node.value, ast.Call) and pattern.fullmatch(last_name(node.value.func)):
            yield node


def steps(source: Source) -> Iterator[ast.Expr]:
    """`optimizer.step()`."""
    for node in bare_calls(source, "step"):
        if _on(node, r"opt|adam|sgd"):
            yield node


def schedules(source: Source) -> Iterator[ast.Expr]:
    """`scheduler.step()`."""
    for node in bare_calls(source, "step"):
        if _on(node, r"sched|lr_|decay"):
            yield node


def _on(statement: ast.Expr, pattern: str) -> bool:
    """The method is called on something of such a name."""
    call = statement.value
    assert isinstance(call, ast.Call)
    if not isinstance(call.func, ast.Attribute):
        return False
    named = receiver(call)
    while isinstance(named, ast.Subscript):
        named = named.value
    return bool(re.search(pattern, last_name(named).lower()))


def lines_of(source: Source, names: str) -> list[int]:
    """Lines on which such a function or method is called in the training."""
    return [node.lineno for node in calls(source, names)]


def optimizers(source: Source) -> Iterator[ast.Call]:
    """Calls that make an optimizer of parameters."""
    yield from calls(source, r"Adam\w*|SGD|RMSprop|Adadelta|Adagrad|NAdam|RAdam")


def forward_calls(source: Source) -> Iterator[tuple[ast.Assign, ast.Call]]:
    """`x = self.layer(x)` in a forward pass: the statement and the call."""
    for node in source.nodes(ast.Assign):
        if not isinstance(node.value, ast.Call) or not node.value.args:
            continue
        function, target = node.value.func, node.targets[0]
        of_self = isinstance(function, ast.Attribute) and last_name(function.value) == "self"
        if of_self and isinstance(target, ast.Name):
            if source.within(node, r"^(forward|encode|decode|features|body)"):
                yield node, node.value
