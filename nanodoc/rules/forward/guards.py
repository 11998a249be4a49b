"""What keeps the argument of a function away from where it, or its derivative, has no finite value:
candidates to be tried.

Several are proposed for one function; which of them cures the step and moves the healthy samples
least, the replay decides.
"""

from __future__ import annotations

from nanodoc.diagnosis.finding import Fix
from nanodoc.facts.ops import OpFacts
from nanodoc.rules.rewrite import guard

_UNIT = "{x}.clamp(-1 + 1e-6, 1 - 1e-6)"
_POSITIVE = ("{x}.clamp_min(1e-12)", "{x} + 1e-12")
_LOG = (*_POSITIVE, "{x}.clamp_min(1e-37)")
_ROW_MAXIMUM = "{x} - {x}.amax(-1, keepdim=True)"

# op -> (position of the argument, candidates in the order of preference)
_CANDIDATES: dict[str, tuple[int, tuple[str, ...]]] = {
    "sqrt": (0, _POSITIVE),
    "rsqrt": (0, _POSITIVE),
    "log": (0, _LOG),
    "log2": (0, _LOG),
    "log10": (0, _LOG),
    "log1p": (0, ("{x}.clamp_min(-1 + 1e-6)",)),
    "xlogy": (1, _LOG),
    "logit": (0, ("{x}.clamp(1e-6, 1 - 1e-6)",)),
    "pow": (0, ("{x}.clamp_min(1e-6)", "{x} + 1e-12")),
    "acos": (0, (_UNIT,)),
    "asin": (0, (_UNIT,)),
    "atanh": (0, (_UNIT,)),
    "erfinv": (0, (_UNIT,)),
    "acosh": (0, ("{x}.clamp_min(1 + 1e-6)",)),
    "atan2": (0, ("{x}.masked_fill({x} == 0, 1e-12)", "{x} + 1e-12")),
    "hypot": (0, ("{x} + 1e-12",)),
    "div": (
        1,
        ("{x}.masked_fill({x} == 0, 1)", "{x}.clamp_min(1)", "{x}.clamp_min(1e-12)", "{x} + 1e-12"),
    ),
    "reciprocal": (0, ("{x}.masked_fill({x} == 0, 1)", "{x}.clamp_min(1e-12)", "{x} + 1e-12")),
    "norm": (0, ("{x} + 1e-12",)),
    "linalg_vector_norm": (0, ("{x} + 1e-12",)),
    "cdist_forward": (0, ("{x} + 1e-6",)),
    "exp": (0, (_ROW_MAXIMUM, "{x}.clamp_max(80)", "{x}.clamp_max(20)")),
    "exp2": (0, ("{x}.clamp_max(100)",)),
    "expm1": (0, ("{x}.clamp_max(80)", "{x}.clamp_max(20)")),
    "cosh": (0, ("{x}.clamp(-80, 80)",)),
    "sinh": (0, ("{x}.clamp(-80, 80)",)),
}


def guards(op: OpFacts, title: str) -> list[Fix]:
    """The candidates for the argument of `op`; [] for a function without any."""
    name = op.short
    if (
        name == "pow"
        and isinstance(exponent := op.scalars.get("exponent"), (int, float))
        and exponent < 0
    ):
        candidates: tuple[int, tuple[str, ...]] = (0, _POSITIVE)
    else:
        candidates = _CANDIDATES.get(name, (0, ()))
    position, templates = candidates
    return [guard(title, op, template, position=position) for template in templates]


def harmless(op: OpFacts, position: int, title: str, *, nan: bool = True) -> Fix:
    """NaN and inf in one argument replaced by 0, where what they lead to is masked anyway."""
    template = "{x}.nan_to_num(0.0, 0.0, 0.0)" if nan else "{x}.nan_to_num(posinf=0.0, neginf=0.0)"
    return guard(title, op, template, position=position)
