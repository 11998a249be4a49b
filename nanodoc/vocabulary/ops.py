"""Families of the ops that the dispatcher sees, by the names that `names.op_name` gives: `softmax`
of `aten._softmax.default`. What an op and a public function share stands in `calls` and serves
both; here is what only ops are called, and what the numerics of an op decide.
"""

from __future__ import annotations

from nanodoc.vocabulary.calls import CLASSIFICATION, LOGARITHMS, NORMS

PROBABILITIES = ("softmax", "safe_softmax")
"""The ops behind a softmax: numbers between 0 and 1 that add up to 1."""

UNIT_DOMAIN = ("acos", "asin", "atanh", "erfinv")
"""They are defined between -1 and 1, with an infinite derivative at both ends."""

LOGS = (*LOGARITHMS, "logit", "xlogy", "special_xlog1py", "logit_backward")
"""They have a pole: log 0 is -inf."""

SINGULAR = (
    *LOGARITHMS,
    *UNIT_DOMAIN,
    "logit",
    "xlogy",
    "div",
    "reciprocal",
    "rsqrt",
    "sqrt",
    "pow",
)
"""They are infinite, undefined or infinitely steep at one number, often 0: a small constant keeps
their arguments away from it."""

FILLED = ("full", "full_like", "new_full", "scalar_tensor", "fill", "masked_fill")
"""They put one given number everywhere, or where a mask says so."""

FLAT = ("round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside")
"""Their derivative is zero everywhere: gradient flows, and is nothing."""

AMPLIFIERS = ("exp", "expm1", "exp2", "sinh", "cosh", "div", "reciprocal", "rsqrt")
"""They make huge values of modest ones."""

FUNCTIONS_OF = {
    "reciprocal": ("reciprocal", "rdiv"),
    "pow": ("pow", "rpow"),
    "linalg_vector_norm": NORMS,
    "norm": NORMS,
    "linalg_eigh": ("linalg_eigh", "linalg_eigvalsh"),
    "linalg_svd": ("linalg_svd", "svd", "linalg_svdvals"),
    "linalg_inv_ex": ("linalg_inv", "inverse", "linalg_inv_ex"),
    "linalg_cholesky_ex": ("linalg_cholesky", "cholesky", "linalg_cholesky_ex"),
    "linalg_solve_ex": ("linalg_solve",),
    "nll_loss_forward": CLASSIFICATION,
    "cdist_forward": ("cdist",),
}
"""The public functions that run an op, where their names differ from the op's."""

HALF_UNIT = {"float32": 2.0**-25, "bfloat16": 2.0**-9, "float16": 2.0**-12}
"""Of a number, by its dtype: to add less than this part of it changes nothing."""
