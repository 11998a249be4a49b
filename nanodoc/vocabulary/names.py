"""One name for all spellings of a function of torch's: `x * y`, `x *= y`, `x.mul_(y)` and
`torch.multiply(x, y)` are all `mul`."""

from __future__ import annotations

from functools import cache

_OPERATORS = {
    "truediv": "div",
    "idiv": "div",
    "itruediv": "div",
    "rsub": "sub",  # x and the number change places: facts.notes says from which number
    "isub": "sub",
    "radd": "add",
    "iadd": "add",
    "rmul": "mul",
    "imul": "mul",
    "rmatmul": "matmul",
    "imatmul": "matmul",
    "ipow": "pow",
    "log_sigmoid": "logsigmoid",  # as torch.nn.functional has it
}
"""Methods behind operators, without their underscores. `rdiv` and `rpow`, of `1 / x` and `2 ** x`,
stay what they are: they are other functions of x than `div` and `pow`."""

ALIASES = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "fix": "trunc",
    "floordiv": "floor_divide",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "linalg_matmul": "matmul",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "row_stack": "vstack",
    "special_expit": "sigmoid",
    "special_log_softmax": "log_softmax",
    "special_log1p": "log1p",
    "special_logit": "logit",
    "special_logsumexp": "logsumexp",
    "special_softmax": "softmax",
    "special_xlogy": "xlogy",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "true_divide": "div",
}
"""Functions that torch's documentation calls an alias of another one, and that one."""


def spelled(name: str) -> str:
    """A function's name without underscores around it, and of an operator's method the function
    that it stands for: `__rsub__` and `sub_` give `sub`, `multiply` stays."""
    bare = name.strip("_")
    return _OPERATORS.get(bare, bare)


def canonical(name: str) -> str:
    """The one name of all spellings of a function: what `spelled` gives, with aliases resolved.
    The families in `calls` hold these names."""
    plain = spelled(name)
    return ALIASES.get(plain, plain)


@cache  # there are only so many ops
def op_name(op: str) -> str:
    """The plain name of an op of the dispatcher: `aten.add_.Tensor` is `add`, and
    `aten._softmax.default` is `softmax`. It needs no `canonical`: aliases are resolved before ops
    are dispatched. `rsub` is an op of its own, whose arguments are the other way round."""
    parts = op.split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).strip("_")
