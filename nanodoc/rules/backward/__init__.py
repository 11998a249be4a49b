"""ND3: backward numerics."""

from nanodoc.rules.backward import (
    backward_overflow,
    degenerate_decomposition,
    gradient_underflow,
    infinite_gradient,
    log_of_softmax,
    masked_branch_gradient,
)

RULES = tuple(
    module.check
    for module in (
        infinite_gradient,
        masked_branch_gradient,
        log_of_softmax,
        degenerate_decomposition,
        backward_overflow,
        gradient_underflow,
    )
)
