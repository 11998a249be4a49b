"""ND9: nanodoc itself."""

from nanodoc.rules.own import (
    nonfinite_probe,
    not_reproduced,
)

RULES = tuple(
    module.check
    for module in (
        not_reproduced,
        nonfinite_probe,
    )
)
