"""ND2: forward numerics."""

from nanodoc.rules.forward import (
    degenerate_statistics,
    division_by_zero,
    domain_error,
    fully_masked_softmax,
    impossible_ctc_alignment,
    indeterminate_form,
    log_of_zero,
    low_precision_overflow,
    mask_constant_overflow,
    overflow,
    uninitialised_parameter,
    vanishing_epsilon,
)

RULES = tuple(
    module.check
    for module in (
        domain_error,
        division_by_zero,
        low_precision_overflow,
        overflow,
        fully_masked_softmax,
        log_of_zero,
        indeterminate_form,
        degenerate_statistics,
        uninitialised_parameter,
        vanishing_epsilon,
        mask_constant_overflow,
        impossible_ctc_alignment,
    )
)
