"""ND301, ND302, ND304: gradients that are infinite or NaN although the loss is fine."""

from __future__ import annotations

from nanodoc.facts.ops import Birth, OpFacts

_DECOMPOSITIONS = (
    "eigh",
    "eig",
    "svd",
    "qr",
    "inv",
    "cholesky",
    "solve",
    "lu",
    "slogdet",
    "pinv",
    "lstsq",
    "det",
    "lobpcg",
)


def is_decomposition(birth: Birth) -> bool:
    name = birth.site.short
    return (
        name.startswith("linalg_") and any(part in name for part in _DECOMPOSITIONS)
    ) or name in (
        "cholesky",
        "logdet",
        "inverse",
        "triangular_solve",
        "cholesky_solve",
    )


def input_evidence(site: OpFacts) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for fact in site.inputs[:2]:
        found += [
            (f"minimum of {fact.label}", fact.minimum),
            (f"maximum of {fact.label}", fact.maximum),
            (f"zeros in {fact.label}", fact.zeros),
        ]
    return found
