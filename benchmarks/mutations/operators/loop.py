"""Mistakes in the optimizer and in the order of the training loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from benchmarks.mutations.operators.base import (
    bare_calls,
    calls,
    keyword,
    lines_of,
    number,
    operator,
    optimizers,
    schedules,
    steps,
)
from benchmarks.mutations.source import Mutation, Source, last_name

_MOVES = r"lerp_|mul_|copy_|add_|update|update_parameters|update_\w+|soft_\w+|sync\w*|\w*ema\w*"
_AVERAGES = re.compile("ema|average|target|shadow|code|mean_|teacher")
_DONE = re.compile(r"(^|_)(done|dones|terminal|terminals|terminated|ended|end_flags?|stop)(_|$)")


@operator("loop", "parameters-left-out")
def left_out(source: Source) -> Iterator[Mutation]:
    for call in optimizers(source):
        if call.args and not isinstance(call.args[0], ast.Starred):
            given = call.args[0]
            yield source.replaced((given, f"list({source.segment(given)})[-2:]"))
            yield source.replaced((given, f"list({source.segment(given)})[:2]"))


@operator("loop", "parameters-of-another-network")
def another_network(source: Source) -> Iterator[Mutation]:
    given = [one for call in optimizers(source) for one in call.args[:1]]
    texts = {source.segment(one) for one in given}
    for call in calls(source, "parameters", quiet=True):
        if isinstance(call.func, ast.Attribute) and not call.args:
            texts.add(source.segment(call))
    for one in given:
        for text in sorted(texts - {source.segment(one)}):
            if text.endswith(".parameters()") and "\n" not in text and "self." not in text:
                yield source.replaced((one, text))


@operator("loop", "never-cleared")
def never_cleared(source: Source) -> Iterator[Mutation]:
    also = lines_of(source, "backward|step")
    for statement in bare_calls(source, "zero_grad"):
        yield source.removed(statement, also)


@operator("loop", "cleared-before-the-step")
def cleared_before_step(source: Source) -> Iterator[Mutation]:
    for step in steps(source):
        text = source.segment(step)
        cleared = text.split(".step(")[0] + ".zero_grad()"
        yield source.replaced((step, f"{cleared}; {text}"))


@operator("loop", "never-stepped")
def never_stepped(source: Source) -> Iterator[Mutation]:
    also = [*lines_of(source, "backward"), *(call.lineno for call in optimizers(source))]
    for step in steps(source):
        yield source.removed(step, also)


@operator("loop", "clipped-after-the-step")
def clipped_late(source: Source) -> Iterator[Mutation]:
    for clip in bare_calls(source, r"clip_grad_norm_|clip_grad_value_"):
        block = source.block(clip)
        after = block[block.index(clip) + 1 :][:1]
        if after and after[0] in set(steps(source)):
            texts = source.segment(clip), source.segment(after[0])
            if "\n" not in "".join(texts):
                yield source.replaced((clip, texts[1]), (after[0], texts[0]))


@operator("loop", "clipped-to-nothing")
def clipped_to_nothing(source: Source) -> Iterator[Mutation]:
    for clip in calls(source, r"clip_grad_norm_|clip_grad_value_"):
        given = keyword(clip, "max_norm", "clip_value")
        if given is None and len(clip.args) > 1:
            given = clip.args[1]
        if given is not None:
            yield source.replaced((given, f"1e-5 * {source.operand(given)}"))


@operator("loop", "schedule-per-batch")
def per_batch(source: Source) -> Iterator[Mutation]:
    for moved in schedules(source):
        for step in steps(source):
            text = source.segment(moved)
            inner = _loop_depth(source, step) > _loop_depth(source, moved)
            if inner and "(" in text and text.endswith("()"):
                yield source.replaced((step, f"{source.segment(step)}; {text}"), (moved, "pass"))


def _loop_depth(source: Source, node: ast.AST) -> int:
    depth, around = 0, source.around(node, ast.For, ast.While)
    while around is not None:
        depth, around = depth + 1, source.around(around, ast.For, ast.While)
    function = source.around(node, ast.FunctionDef)
    named = function.name if isinstance(function, ast.FunctionDef) else ""
    return depth + (1 if named.startswith("train_") or named == "train" else 0)


@operator("loop", "schedule-of-another-length")
def another_length(source: Source) -> Iterator[Mutation]:
    for call in calls(source, r"CosineAnnealingLR|OneCycleLR|StepLR|LinearLR|PolynomialLR"):
        given = keyword(call, "T_max", "total_steps", "step_size", "total_iters")
        if given is None and len(call.args) > 1:
            given = call.args[1]
        if given is not None:
            yield source.replaced((given, f"max(1, {source.operand(given)} // 10)"))
    for call in calls(source, "ExponentialLR|StepLR"):
        given = keyword(call, "gamma")
        if given is not None:
            yield source.replaced((given, f"{source.operand(given)} ** 20"))


@operator("loop", "rate-times-100")
def rate_up(source: Source) -> Iterator[Mutation]:
    for given in _of_optimizers(source, "lr", 1):
        yield source.replaced((given, f"100 * {source.operand(given)}"))


@operator("loop", "rate-by-1000")
def rate_down(source: Source) -> Iterator[Mutation]:
    for given in _of_optimizers(source, "lr", 1):
        yield source.replaced((given, f"{source.operand(given)} / 1000"))


@operator("loop", "decay-times-1000")
def decay_up(source: Source) -> Iterator[Mutation]:
    for given in _of_optimizers(source, "weight_decay", 99):
        yield source.replaced((given, f"1000 * {source.operand(given)}"))


@operator("loop", "betas-swapped")
def betas(source: Source) -> Iterator[Mutation]:
    for call in optimizers(source):
        if not last_name(call.func).startswith("Adam") or last_name(call.func) == "Adamax":
            continue
        given = keyword(call, "betas")
        if given is not None:
            yield source.replaced((given, "(0.999, 0.5)"))
        elif last_name(call.func) in ("Adam", "AdamW"):
            text = source.segment(call)[:-1].rstrip().rstrip(",")
            yield source.replaced((call, f"{text}, betas=(0.999, 0.5))"))


@operator("loop", "momentum-of-one")
def momentum(source: Source) -> Iterator[Mutation]:
    for given in _of_optimizers(source, "momentum", 99):
        yield source.replaced((given, "1.0"))


def _of_optimizers(source: Source, name: str, position: int) -> Iterator[ast.expr]:
    for call in optimizers(source):
        given = keyword(call, name)
        if given is None and len(call.args) > position:
            given = call.args[position]
        if given is not None:
            yield given
    for call in calls(source, "TrainingArguments|SFTConfig"):
        given = keyword(call, {"lr": "learning_rate"}.get(name, name))
        if given is not None:
            yield given


@operator("loop", "average-never-moved")
def never_moved(source: Source) -> Iterator[Mutation]:
    """An average of the weights, a target network or a codebook stays as it began."""
    for statement in bare_calls(source, _MOVES, quiet=True):
        call = statement.value
        assert isinstance(call, ast.Call)
        if _AVERAGES.search(source.segment(statement).lower()):
            if source.around(statement, ast.For, ast.While, ast.FunctionDef) is not None:
                yield source.removed(statement, _uses_of_averages(source, statement))


def _uses_of_averages(source: Source, statement: ast.stmt) -> list[int]:
    """Lines on which the averages that the statement and its loop name are made and used."""
    around = source.around(statement, ast.For) or statement
    named = {last_name(node) for node in ast.walk(around)}
    named = {name for name in named if _AVERAGES.search(name.lower())}
    uses = source.nodes(ast.expr, quiet=True)
    return [node.lineno for node in uses if last_name(node) in named]


@operator("loop", "average-moves-at-once")
def moves_at_once(source: Source) -> Iterator[Mutation]:
    """The average is the last weights: no average at all."""
    for call in calls(source, "lerp_", quiet=True):
        if len(call.args) == 2:
            yield source.replaced((call.args[1], "1.0"))


@operator("loop", "end-of-episode-ignored")
def end_ignored(source: Source) -> Iterator[Mutation]:
    for node in _ends(source):
        yield source.replaced((node, "1.0"))


@operator("loop", "end-of-episode-shifted")
def end_shifted(source: Source) -> Iterator[Mutation]:
    for node in source.nodes(ast.Subscript, quiet=True):
        if not _DONE.search(last_name(node.value)) or not isinstance(node.ctx, ast.Load):
            continue
        index = node.slice
        if isinstance(index, ast.Name):
            yield source.replaced((index, f"{index.id} - 1"))
        elif isinstance(index, ast.BinOp) and number(index.right) == 1:
            yield source.replaced((index, source.segment(index.left)))
    for alive in _ends(source):
        if isinstance(alive.right, ast.Name | ast.Attribute):
            yield source.replaced((alive.right, f"{source.segment(alive.right)}.roll(1, 0)"))


def _ends(source: Source) -> Iterator[ast.BinOp]:
    """`1 - done`."""
    for node in source.nodes(ast.BinOp, quiet=True):
        if isinstance(node.op, ast.Sub) and number(node.left) == 1:
            inner = node.right
            while isinstance(inner, ast.Subscript | ast.Call):
                if isinstance(inner, ast.Subscript):
                    inner = inner.value
                else:
                    inner = (
                        inner.func.value if isinstance(inner.func, ast.Attribute) else inner.func
                    )
            if _DONE.search(last_name(inner)):
                yield node


@operator("loop", "accumulation-not-divided")
def not_divided(source: Source) -> Iterator[Mutation]:
    for node in source.nodes(ast.BinOp):
        if isinstance(node.op, ast.Div) and re.search("accum|micro", ast.unparse(node.right)):
            yield source.replaced((node, source.segment(node.left)))


@operator("loop", "optimizer-state-lost")
def state_lost(source: Source) -> Iterator[Mutation]:
    """The averages of the optimizer begin anew in every step."""
    for step in steps(source):
        call = step.value
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        of = source.segment(call.func.value)
        yield source.replaced((step, f"{of}.state.clear(); {source.segment(step)}"))
